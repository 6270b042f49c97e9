-- migrate_scheduled.lua: move a batch of jobs that wait for their time out of the previous layout.
--
-- KEYS[1]       lock       D:migration_lock    string, who may
-- KEYS[2]       old times  old:scheduled       sorted set, timer ID -> due time
-- KEYS[3]       old jobs   old:scheduled:jobs  hash, timer ID -> packed entry
-- KEYS[4]       scheduled  T:scheduled         sorted set
-- KEYS[5]       jobs       T:scheduled:jobs    hash
-- KEYS[6]       wake       T:wake              stream
-- KEYS[7]       stream     T:stream            stream
-- KEYS[8..11]   ids        T:ids:<slice>       hashes, job ID -> queued <entry ID> | done <entry ID>
-- KEYS[12..15]  done       T:done:<slice>      hashes, <group>/<job ID> -> running <entry ID> | done <result>
-- ARGV[1]  owner of the lock
-- ARGV[2]  ms for which it is renewed
-- ARGV[3]  most jobs
-- ARGV[4]  bytes of entries after which no further ones are moved
--
-- Returns  { moved, superseded, left }
--          superseded  removed, since this layout has the job already
--          left        1 if there are more, else 0
--          error LOCKLOST, WRONGTYPE  nothing was written
--
-- Atomic because a job must wait in one of the layouts, never in both, never in neither. Times without an entry, and entries
-- without a time, move as they are: promote.lua says what becomes of them. The keys lie in several slots: never on a cluster.
-- Redis >= 6.2.
-- Uses: ids, groups, types, records, timers, moving, superseded

local lock, old_times, old_jobs, scheduled, jobs = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local wake, stream = KEYS[6], KEYS[7]
local ids = { KEYS[8], KEYS[9], KEYS[10], KEYS[11] }
local done = { KEYS[12], KEYS[13], KEYS[14], KEYS[15] }
local owner = ARGV[1]
local ttl = ARGV[2]
local most = tonumber(ARGV[3])
local most_bytes = tonumber(ARGV[4])
local FEW, MANY = 10, 200 -- entries that are held at once; they may be large

local wrong = check_timers(old_times, old_jobs) or check_timers(scheduled, jobs) or check_stream(stream)
  or check_slices(ids) or check_slices(done) or check_lock(lock, owner, ttl)
if wrong then return wrong end

-- Timer IDs, and their times. Without any times, entries that have none.
local function next_page()
  local names, scores = {}, {}
  local rows = redis.call('ZRANGE', old_times, 0, most - 1, 'WITHSCORES')
  for i = 1, #rows / 2 do names[i], scores[i] = rows[2 * i - 1], rows[2 * i] end
  if #rows == 0 then
    rows = redis.call('HSCAN', old_jobs, 0, 'COUNT', FEW)[2]
    for i = 1, math.min(#rows / 2, most) do names[i] = rows[2 * i - 1] end
  end
  return names, scores
end

-- Those that this layout remembers as added or finished: at the first apply nothing is, so nothing is looked at.
local any_records = redis.call('EXISTS', unpack(ids)) + redis.call('EXISTS', unpack(done)) > 0
local function remembered(names)
  if not any_records then return {} end
  local now, job_ids, known = server_ms(), {}, {}
  for i, name in ipairs(names) do
    local _, job_id = split_timer(name)
    job_ids[i] = job_id or name
  end
  local queued, ended = find_records(ids, now, job_ids), find_records(done, now, names)
  for i, name in ipairs(names) do
    local record = queued[job_ids[i]]
    -- Of a group's next attempt only that group's own end counts: that another one is done says nothing of it.
    if split_timer(name) ~= '' and string.sub(record or '', 1, 5) == 'done ' then record = nil end
    known[i] = is_superseded(stream, job_ids[i], record) or string.sub(ended[name] or '', 1, 5) == 'done '
  end
  return known
end

local names, scores = next_page()
local first, earliest = first_due(scheduled), nil
local moved, superseded, bytes = 0, 0, 0
local from, chunk = 1, FEW
while from <= #names and bytes <= most_bytes do
  local some = { unpack(names, from, math.min(from + chunk - 1, #names)) }
  local there = redis.call('ZMSCORE', scheduled, unpack(some))
  local bodies = redis.call('HMGET', old_jobs, unpack(some))
  local known = remembered(some)
  local times, entries, t, e = {}, {}, 0, 0
  for i, name in ipairs(some) do
    if there[i] or known[i] then
      superseded = superseded + 1
    else
      moved = moved + 1
      local score, body = scores[from + i - 1], bodies[i]
      if score then times[t + 1], times[t + 2], t = score, name, t + 2 end
      if body then entries[e + 1], entries[e + 2], e, bytes = name, body, e + 2, bytes + #body end
    end
  end
  if e > 0 then redis.call('HSET', jobs, unpack(entries)) end
  if t > 0 then redis.call('ZADD', scheduled, unpack(times)) end
  earliest = earliest or tonumber(times[1])
  drop_timers(old_times, old_jobs, some)
  from = from + #some
  chunk = bytes < 5000 * from and MANY or FEW
end
if earliest and (not first or earliest < first) then
  redis.pcall('XADD', wake, 'MAXLEN', 1, '*', 'due', string.format('%.0f', earliest))
end
return { moved, superseded, redis.call('EXISTS', old_times, old_jobs) > 0 and 1 or 0 }
