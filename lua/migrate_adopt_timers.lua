-- migrate_adopt_timers.lua: move a batch of somebody's timers to what waits in a stream.
--
-- KEYS[1]  lock       D:migration_lock    string, who may
-- KEYS[2]  old times  old:scheduled       sorted set, ID -> due time; of any name
-- KEYS[3]  old jobs   old:scheduled:jobs  hash, ID -> payload; of any name
-- KEYS[4]  scheduled  T:scheduled         sorted set
-- KEYS[5]  jobs       T:scheduled:jobs    hash
-- KEYS[6]  wake       T:wake              stream
-- ARGV[1]  owner of the lock
-- ARGV[2]  ms for which it is renewed
-- ARGV[3]  most timers
-- ARGV[4]  bytes of payloads after which no further ones are moved
-- ARGV[5]  how many to pass over, which could not be moved
--
-- Returns  { moved, { ID, why, ... }, left }
--          why  of one that stays: 'body' it has none, 'id' it is no job ID, 'time' its time is none, 'there' the stream has one
--          error LOCKLOST, WRONGTYPE  nothing was written
--
-- Atomic because a job must wait in one place, with its time and its payload. The keys lie in several slots: never on a
-- cluster. Redis >= 6.2.
-- Uses: ids, groups, types, records, timers, moving

local lock, old_times, old_jobs, scheduled, jobs, wake = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local owner = ARGV[1]
local ttl = ARGV[2]
local most = tonumber(ARGV[3])
local most_bytes = tonumber(ARGV[4])
local skip = tonumber(ARGV[5])
local FEW, MANY = 10, 200 -- payloads that are held at once; they may be large

local wrong = check_timers(old_times, old_jobs) or check_timers(scheduled, jobs) or check_stream(wake)
  or check_lock(lock, owner, ttl)
if wrong then return wrong end

local now = string.format('%.0f', server_ms())
local first, earliest = first_due(scheduled), nil
local stuck = {}

-- Payloads that have no time are looked for only if there may be some.
local any_alone = redis.call('HLEN', jobs) ~= redis.call('ZCARD', scheduled)

local function why_not(id, due, body, score)
  if not body then return 'body' end
  if #id == 0 or #id > 512 or string.find(id, '%c') then return 'id' end
  if not due or due ~= due or due > 99999999999999 then return 'time' end
  if score or any_alone and redis.call('HEXISTS', jobs, timer_id('', id)) == 1 then return 'there' end
end

local rows = redis.call('ZRANGE', old_times, skip, skip + most - 1, 'WITHSCORES')
local moved, bytes, from, chunk = 0, 0, 1, FEW
while from <= #rows and bytes <= most_bytes do
  local ids, names = {}, {}
  for i = from, math.min(from + 2 * chunk - 2, #rows), 2 do
    ids[#ids + 1], names[#names + 1] = rows[i], timer_id('', rows[i])
  end
  local scores = redis.call('ZMSCORE', scheduled, unpack(names))
  local bodies = redis.call('HMGET', old_jobs, unpack(ids))
  local times, entries, gone = {}, {}, {}
  for i, id in ipairs(ids) do
    local due, body = tonumber(rows[from + 2 * i - 1]), bodies[i]
    local why = why_not(id, due, body, scores[i])
    if why then
      stuck[#stuck + 1], stuck[#stuck + 2] = id, why
    else
      local score = string.format('%.0f', math.max(due, 0))
      earliest = earliest or tonumber(score)
      times[#times + 1], times[#times + 2] = score, names[i]
      entries[#entries + 1] = names[i]
      entries[#entries + 1] = cmsgpack.pack({ 'job', body, 'sq:id', id, 'sq:at', now })
      gone[#gone + 1] = id
      bytes = bytes + #body
    end
  end
  if #gone > 0 then
    redis.call('HSET', jobs, unpack(entries))
    redis.call('ZADD', scheduled, unpack(times))
    drop_timers(old_times, old_jobs, gone)
    moved = moved + #gone
  end
  from = from + 2 * #ids
  chunk = bytes < 2500 * from and MANY or FEW
end
if earliest and (not first or earliest < first) then
  redis.pcall('XADD', wake, 'MAXLEN', 1, '*', 'due', string.format('%.0f', earliest))
end
return { moved, stuck, redis.call('ZCARD', old_times) > skip + #stuck / 2 and 1 or 0 }
