-- add.lua: put jobs into the stream, each unless its ID is known already, while the stream is not full.
--
-- KEYS[1]     stream  T:stream        stream
-- KEYS[2..5]  ids     T:ids:<slice>   hashes, job ID -> queued <entry ID> | done <entry ID>
-- ARGV[1]  slice length in ms
-- ARGV[2]  most entries that may be ready (not read by the group that is furthest behind), or 0 for no limit
-- ARGV[3]  retention, delete or keep
-- ARGV[4..]  per job: its ID or '' (none was chosen), how many fields and values follow, field, value, field, value ...
--
-- Returns  per job  { 1, entry ID, 'ready' }    added
--                   { 0, entry ID, 'ready' }    known: a group that handles it has not read it yet
--                   { 0, entry ID, 'pending' }  known: a group has read it and not settled it
--                   { 0, entry ID, 'done' }     known: settled within the last idempotency_ttl
--                   { -1, number, 'full' }      not added: so many are ready. Whatever follows it was not added either
--          error WRONGTYPE  a slice of T:ids is no hash; nothing was written
--
-- Atomic because two producers with one ID must get one entry, and of a batch a whole beginning must be added, so that the
-- caller can tell what is left. A record whose entry was removed by somebody else does not count, else a flushed stream
-- would refuse its jobs for a day. Redis >= 6.2.
-- Uses: ids, groups, records

local stream = KEYS[1]
local ids = { KEYS[2], KEYS[3], KEYS[4], KEYS[5] }
local slice_ms = tonumber(ARGV[1])
local max_ready = tonumber(ARGV[2])
local retention = ARGV[3]

local wrong = check_slices(ids)
if wrong then return wrong end

-- Where the server does not know the lag (6.2, or after a deletion): one by one, never more than the limit.
local function count_unread(last)
  local count = 0
  while count < max_ready do
    local page = redis.call('XRANGE', stream, '(' .. last, '+', 'COUNT', 100)
    count = count + #page
    if #page < 100 then break end
    last = page[100][1]
  end
  return count
end

-- Exact where it matters: below the limit it may be too high by what is pending or kept.
local function count_ready()
  local length = redis.call('XLEN', stream)
  if length < max_ready then return length end
  local groups = group_rows(stream)
  if #groups == 0 then return length end
  local most = 0
  for _, group in ipairs(groups) do
    local count = length - group.pending
    if group.lag then
      -- Redis 7.0's lag stays too high for good once unread entries were deleted, as cancel does.
      count = math.min(group.lag, count)
    else
      -- With one group, what was settled is deleted: the rest is unread, but for pending entries that lost their body.
      if count >= max_ready and (#groups > 1 or retention == 'keep') then count = count_unread(group['last-delivered-id']) end
    end
    most = math.max(most, math.min(count, length))
  end
  return most
end

local now = server_ms()
local ready = max_ready > 0 and count_ready() or 0

local function add(job_id, first, last)
  local record = job_id ~= '' and find_record(ids, now, job_id)
  if record then
    local word, entry_id = string.match(record, '^(%a+) (.*)$')
    local state = word == 'done' and 'done' or entry_state(stream, entry_id)
    if state then return { 0, entry_id, state } end
  end
  if max_ready > 0 and ready >= max_ready then return { -1, tostring(ready), 'full' } end
  local entry_id = redis.call('XADD', stream, '*', unpack(ARGV, first, last))
  if job_id ~= '' then put_records(ids, now, slice_ms, { job_id }, { job_id, 'queued ' .. entry_id }) end
  ready = ready + 1
  return { 1, entry_id, 'ready' }
end

local answers = {}
local at = 4
while at <= #ARGV do
  local last = at + 1 + tonumber(ARGV[at + 1])
  local previous = answers[#answers]
  if previous and previous[1] == -1 then answers[#answers + 1] = previous
  else answers[#answers + 1] = add(ARGV[at], at + 2, last) end
  at = last + 1
end
return answers
