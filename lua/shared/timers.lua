-- timers.lua: jobs that wait for their time. T:scheduled says when, T:scheduled:jobs holds their entries.
--
-- A timer's ID is <group>/<job ID>, with an empty group for a job of all groups; names of groups have no slash. So the
-- retries of one job in two groups are two timers. A packed entry is a MessagePack array: field, value, field, value ...

local function check_timers(scheduled, jobs)
  return check_type(scheduled, 'zset') or check_hash(jobs)
end

local function timer_id(group, job_id) return group .. '/' .. job_id end

local function split_timer(id) return string.match(id, '^([^/]*)/(.+)$') end

-- The timers that a job has: for all groups, or each of these.
local function timers_of(scheduled, job_id, groups)
  local found = {}
  local function look(id)
    if redis.call('ZSCORE', scheduled, id) then found[#found + 1] = id end
  end
  look(timer_id('', job_id))
  for _, row in ipairs(groups) do look(timer_id(row.name, job_id)) end
  return found
end

-- The timer by which a group has a job: its own, or else the one of all groups.
local function timer_for(scheduled, group, job_id)
  for _, id in ipairs({ timer_id(group, job_id), timer_id('', job_id) }) do
    if redis.call('ZSCORE', scheduled, id) then return id end
  end
end

-- When the first is due, by the server's clock in ms; nil without any, and of a key of another type.
local function first_due(scheduled)
  return tonumber(redis.pcall('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2] or nil)
end

-- ms from now until the first is due, at most a day; 0 if it is; -1 without any.
local function wait_for_first(scheduled, now)
  local due = first_due(scheduled)
  return due and math.ceil(math.min(math.max(due - now, 0), 86400000)) or -1
end

-- What 'in' or 'at' means, in ms of the server's clock, never before now; nil if it is more than `most` ahead.
local function due_time(now, kind, ms, most)
  local due = kind == 'at' and math.max(tonumber(ms), now) or now + tonumber(ms)
  return due - now <= most and due or nil
end

-- Sets the time, and wakes who sleeps until the first is due if this one comes before it. That it may not be woken is no
-- reason to fail: it looks again by itself.
local function set_due(scheduled, wake, id, due)
  local first = first_due(scheduled)
  redis.call('ZADD', scheduled, string.format('%.0f', due), id)
  if not first or due < first then redis.pcall('XADD', wake, 'MAXLEN', 1, '*', 'due', string.format('%.0f', due)) end
end

local function put_timer(scheduled, jobs, wake, id, due, fields)
  redis.call('HSET', jobs, id, cmsgpack.pack(fields))
  set_due(scheduled, wake, id, due)
end

local function drop_timers(scheduled, jobs, ids)
  redis.call('ZREM', scheduled, unpack(ids))
  redis.call('HDEL', jobs, unpack(ids))
end

-- Fields of a packed entry; nil if it is none. Each is copied, so what somebody else has packed may be anything.
local function unpack_entry(packed)
  local ok, fields = pcall(cmsgpack.unpack, packed)
  if not ok or type(fields) ~= 'table' or #fields < 2 or #fields % 2 == 1 or #fields > 7000 then return nil end
  for _, part in ipairs(fields) do
    if type(part) ~= 'string' then return nil end
  end
  return fields
end

-- The job ID that a caller chose, or nil.
local function chosen_id(fields)
  return not value_of(fields, 'sq:generated') and value_of(fields, 'sq:id') or nil
end
