-- promote.lua: move jobs whose time has come into the stream.
--
-- KEYS[1]     stream     T:stream          stream
-- KEYS[2]     scheduled  T:scheduled       sorted set, timer ID -> due time
-- KEYS[3]     jobs       T:scheduled:jobs  hash, timer ID -> packed entry
-- KEYS[4]     dead       T:dead            stream of dead letters
-- KEYS[5]     meta       T:meta            hash, counters
-- KEYS[6..9]  ids        T:ids:<slice>     hashes, job ID -> queued <entry ID> | done <entry ID>
-- ARGV[1]  group, for dead letters of jobs of all groups
-- ARGV[2]  slice length in ms
-- ARGV[3]  most jobs
-- ARGV[4]  bytes of entries after which no further ones are moved
--
-- Returns  { moved, wait, { timer ID, what, ... } }
--          moved  jobs that are in the stream now
--          wait   ms until the next is due, 0 if one is, -1 if there is none
--          what   of timers that were taken out because they are no jobs: lost (there was no entry, nothing is left of it),
--                 untimed (there was no time) or malformed (it was no packed entry): those two are dead letters now.
--                 stuck: the dead letter cannot be written, so it stays
--          error  the first could not be added (WRONGTYPE, memory is full, ...); nothing was moved
--
-- Atomic because a job must wait or be in the stream, never both, never neither; so several promoters move each once. XADD
-- is the write that can fail: what follows the first that did stays where it is. Entry IDs are the server's: those made of
-- due times would go backwards. What is no job is taken out, or it would be first in line for ever. Redis >= 6.2.
-- Uses: groups, records, types, timers, orphans

local stream = KEYS[1]
local scheduled = KEYS[2]
local jobs = KEYS[3]
local dead = KEYS[4]
local meta = KEYS[5]
local ids = { KEYS[6], KEYS[7], KEYS[8], KEYS[9] }
local group = ARGV[1]
local slice_ms = tonumber(ARGV[2])
local most = tonumber(ARGV[3])
local max_bytes = tonumber(ARGV[4])

local PAGE = 20 -- most entries fetched at once; the first of them one by one, or two, for they may be large

local wrong = check_stream(stream) or check_timers(scheduled, jobs) or check_slices(ids)
if wrong then return wrong end
local now = server_ms()
local due = redis.call('ZRANGEBYSCORE', scheduled, '-inf', string.format('%.0f', now), 'LIMIT', 0, most)

local over, dropped, orphans, refused, bytes = {}, {}, 0, nil, 0 -- over: timers that are no more
local names, pairs_ = {}, {}

local function move(id, fields)
  local entry_id = redis.pcall('XADD', stream, '*', unpack(fields))
  if type(entry_id) == 'table' then
    refused = entry_id
    return
  end
  over[#over + 1] = id
  local job_id = chosen_id(fields)
  if job_id then
    names[#names + 1] = job_id
    pairs_[#pairs_ + 1] = job_id
    pairs_[#pairs_ + 1] = 'queued ' .. entry_id
  end
end

local moved, first, size = 0, 1, 1
while first <= #due and not refused and bytes <= max_bytes do
  local page = { unpack(due, first, math.min(first + size - 1, #due)) }
  first, size = first + size, math.min(2 * size, PAGE)
  for i, packed in ipairs(redis.call('HMGET', jobs, unpack(page))) do
    if refused then break end
    local fields = packed and unpack_entry(packed)
    bytes = bytes + (packed and #packed or 0)
    if fields then
      move(page[i], fields)
      if not refused then moved = moved + 1 end
    else
      local what = packed and 'malformed' or 'lost'
      if packed and not bury_timer(dead, meta, group, page[i], 'it is no packed entry', { 'packed', packed }, now) then
        what = 'stuck'
      else
        over[#over + 1] = page[i]
        orphans = orphans + 1
      end
      dropped[#dropped + 1] = page[i]
      dropped[#dropped + 1] = what
    end
  end
end
if refused and #over == 0 then return refused end
if #over > 0 then drop_timers(scheduled, jobs, over) end
if #names > 0 then put_records(ids, now, slice_ms, names, pairs_) end
if #due == 0 then orphans = take_untimed(scheduled, jobs, dead, meta, group, dropped, now) end
if orphans > 0 then redis.pcall('HINCRBY', meta, 'orphans', orphans) end
return { moved, wait_for_first(scheduled, now), dropped }
