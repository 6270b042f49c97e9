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
local CHUNK = 100

local wrong = check_timers(old_times, old_jobs) or check_timers(scheduled, jobs) or check_stream(stream)
  or check_slices(ids) or check_slices(done) or check_lock(lock, owner, ttl)
if wrong then return wrong end

local function page_of_times()
  local names, scores = {}, {}
  local rows = redis.call('ZRANGE', old_times, 0, most - 1, 'WITHSCORES')
  for i = 1, #rows, 2 do
    names[#names + 1] = rows[i]
    scores[rows[i]] = rows[i + 1]
  end
  return names, scores
end

-- What is left when there are no times any more.
local function page_without_times()
  local names = {}
  local rows = redis.call('HSCAN', old_jobs, 0, 'COUNT', CHUNK)[2]
  for i = 1, math.min(#rows, 2 * most), 2 do names[#names + 1] = rows[i] end
  return names, {}
end

local function known_of(names)
  local job_ids, runs = {}, {}
  for i, name in ipairs(names) do
    local _, job_id = split_timer(name)
    job_ids[i], runs[i] = job_id or name, name
  end
  local now = server_ms()
  return find_records(ids, now, job_ids), find_records(done, now, runs), job_ids
end

local names, scores = page_of_times()
if #names == 0 then names, scores = page_without_times() end
local first = first_due(scheduled)
local earliest, moved, superseded, bytes = nil, 0, 0, 0
for from = 1, #names, CHUNK do
  local some = { unpack(names, from, math.min(from + CHUNK - 1, #names)) }
  local there = redis.call('ZMSCORE', scheduled, unpack(some))
  local bodies = redis.call('HMGET', old_jobs, unpack(some))
  local queued, ended, job_ids = known_of(some)
  local times, entries = {}, {}
  for i, name in ipairs(some) do
    local group = split_timer(name)
    local record = queued[job_ids[i]]
    -- Of a group's next attempt only that group's own end counts: that another one is done says nothing of it.
    if group ~= '' and string.sub(record or '', 1, 5) == 'done ' then record = nil end
    if there[i] or is_superseded(stream, job_ids[i], record) or string.sub(ended[name] or '', 1, 5) == 'done ' then
      superseded = superseded + 1
    else
      moved = moved + 1
      if scores[name] then
        times[#times + 1], times[#times + 2] = scores[name], name
        earliest = earliest or tonumber(scores[name])
      end
      if bodies[i] then
        entries[#entries + 1], entries[#entries + 2] = name, bodies[i]
        bytes = bytes + #bodies[i]
      end
    end
  end
  if #entries > 0 then redis.call('HSET', jobs, unpack(entries)) end
  if #times > 0 then redis.call('ZADD', scheduled, unpack(times)) end
  drop_timers(old_times, old_jobs, some)
  if bytes > most_bytes then break end
end
if earliest and (not first or earliest < first) then
  redis.pcall('XADD', wake, 'MAXLEN', 1, '*', 'due', string.format('%.0f', earliest))
end
return { moved, superseded, redis.call('EXISTS', old_times, old_jobs) > 0 and 1 or 0 }
