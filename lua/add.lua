-- add.lua: put jobs into the stream, each unless its ID is known already, while the stream is not full.
--
-- KEYS[1]     stream     T:stream        stream
-- KEYS[2]     scheduled  T:scheduled     sorted set, timer ID -> due time
-- KEYS[3..6]  ids        T:ids:<slice>   hashes, job ID -> queued <entry ID> | done <entry ID>
-- ARGV[1]  slice length in ms
-- ARGV[2]  most entries that may be ready (not read by the group that is furthest behind), or 0 for no limit
-- ARGV[3..]  per job: its ID or '' (none was chosen), how many fields and values follow, field, value, field, value ...
--
-- Returns  per job  { 1, entry ID, 'ready' }    added
--                   { 0, entry ID, 'ready' }    known: a group that handles it has not read it yet
--                   { 0, entry ID, 'pending' }  known: a group has read it and not settled it
--                   { 0, entry ID, 'done' }     known: settled within the last idempotency_ttl
--                   { 0, '', 'scheduled' }      known: it waits for its time, or for its next attempt
--                   { -1, number, 'full' }      not added: so many are ready. Whatever follows it was not added either
--          error WRONGTYPE  a slice of T:ids is no hash, or T:scheduled no sorted set; nothing was written
--          error            an entry could not be added (memory is full, the stream has used up its IDs, ...); nothing was
--                           written from there on
--
-- Atomic because two producers with one ID must get one entry, and of a batch a whole beginning must be added, so that the
-- caller can tell what is left. A record whose entry was removed by somebody else does not count, else a flushed stream
-- would refuse its jobs for a day. Redis >= 6.2.
-- Uses: ids, groups, records, types, timers

local stream = KEYS[1]
local scheduled = KEYS[2]
local ids = { KEYS[3], KEYS[4], KEYS[5], KEYS[6] }
local slice_ms = tonumber(ARGV[1])
local max_ready = tonumber(ARGV[2])

local wrong = check_type(scheduled, 'zset') or check_slices(ids)
if wrong then return wrong end
local now = server_ms()

local rows -- of the groups: most jobs are added without a look at them
local function groups()
  rows = rows or group_rows(stream)
  return rows
end

local LOOK, BYTES = 1000, 4194304 -- most entries, and bytes of them, counted on either side

-- Entries behind `last`. Counted from there on, and from the head up to there, at once: whichever ends first tells, so the
-- backlog may be long, or what is pending and kept. Where both are, what is left uncounted passes for unread.
local function count_unread(last, length)
  local unread, read, bytes, size = 0, 0, 0, 10
  local behind, first = last, '-'
  while unread < LOOK and bytes < BYTES do
    local page = redis.call('XRANGE', stream, first, last, 'COUNT', size)
    read = read + #page
    if #page < size then break end
    first = '(' .. page[size][1]
    for _, entry in ipairs(page) do bytes = bytes + size_of(entry) end
    if not entry_behind(stream, behind) then return unread end
    page = redis.call('XRANGE', stream, '(' .. behind, '+', 'COUNT', size)
    unread = unread + #page
    if #page < size or unread >= max_ready then return unread end
    behind = page[size][1]
    for _, entry in ipairs(page) do bytes = bytes + size_of(entry) end
    size = bytes < 65536 and 100 or 10
  end
  return length - read
end

-- Exact where it matters: below the limit it may be too high by what is pending or kept. The server's lag is unknown on 6.2
-- and after some deletions, and on 7.0 too high after others (a job that is cancelled), never too low.
local function count_ready(more)
  local length = redis.call('XLEN', stream)
  if length + more <= max_ready then return length end
  if #groups() == 0 then return length end
  local most = 0
  for _, group in ipairs(groups()) do
    local count = group.lag or length
    if count + more > max_ready then count = math.min(count, count_unread(group['last-delivered-id'], length)) end
    most = math.max(most, math.min(count, length))
  end
  return most
end

local ready
local known, queued = {}, {} -- what was remembered, and what this batch adds: looked up, and noted, all at once
local any_timers = false
local names, pairs_ = {}, {}

local function add(job_id, first, last)
  if job_id ~= '' and any_timers and timers_of(scheduled, job_id, groups())[1] then return { 0, '', 'scheduled' } end
  local record = job_id ~= '' and (queued[job_id] or known[job_id])
  if record then
    local word, entry_id = string.match(record, '^(%a+) (.*)$')
    local state = word == 'done' and 'done' or (is_id(entry_id or '') and entry_state(stream, entry_id, groups()))
    if state then return { 0, entry_id, state } end
  end
  if max_ready > 0 and ready >= max_ready then return { -1, tostring(ready), 'full' } end
  local entry_id = redis.pcall('XADD', stream, '*', unpack(ARGV, first, last))
  if type(entry_id) == 'table' then return entry_id end
  if job_id ~= '' then
    queued[job_id] = 'queued ' .. entry_id
    names[#names + 1] = job_id
    pairs_[#pairs_ + 1] = job_id
    pairs_[#pairs_ + 1] = queued[job_id]
  end
  ready = ready + 1
  return { 1, entry_id, 'ready' }
end

local jobs, chosen, at = 0, {}, 3
while at <= #ARGV do
  jobs = jobs + 1
  if ARGV[at] ~= '' then chosen[#chosen + 1] = ARGV[at] end
  at = at + 2 + tonumber(ARGV[at + 1])
end
if #chosen > 0 then
  known = find_records(ids, now, chosen)
  any_timers = redis.call('EXISTS', scheduled) == 1
end
ready = max_ready > 0 and count_ready(jobs) or 0

local answers, refused = {}, nil
at = 3
while at <= #ARGV and not refused do
  local last = at + 1 + tonumber(ARGV[at + 1])
  local answer = answers[#answers]
  if not answer or answer[1] ~= -1 then answer = add(ARGV[at], at + 2, last) end
  if answer.err then refused = answer end
  answers[#answers + 1] = answer
  at = last + 1
end
if #names > 0 then put_records(ids, now, slice_ms, names, pairs_) end
return refused or answers
