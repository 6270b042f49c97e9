-- dead_letter.lua: move one pending entry to the dead-letter stream. Called inside MULTI/EXEC, once per entry.
--
-- KEYS[1]      stream  T:stream         stream
-- KEYS[2]      dead    T:dead           stream of dead letters
-- KEYS[3]      meta    T:meta           hash, counters; kept:<entry ID> counts the letters that refer to an entry
-- KEYS[4..7]   ids     T:ids:<slice>    hashes, job ID -> queued <entry ID> | done <entry ID>
-- KEYS[8..11]  done    T:done:<slice>   hashes, <group>/<job ID> -> running <entry ID> | done <result>
-- ARGV[1]  group
-- ARGV[2]  consumer
-- ARGV[3]  retention, delete or keep
-- ARGV[4]  entry ID
-- ARGV[5]  delivery count
-- ARGV[6]  reason
-- ARGV[7]  error, cut by the caller
-- ARGV[8]  job ID, or '' to take it from the entry
-- ARGV[9]  attempts made, or '' to take them from the entry
--
-- Returns   1   moved
--           2   moved as a tombstone: the body was gone (reason entry_missing)
--           3   moved as a reference: the entry has more fields than a script can copy (reason oversized) and stays in
--               the stream under its ID until the letter is purged
--           0   not pending any more; nothing was written
--          -1   another consumer's, or a later delivery; nothing was written
--          error  the dead letter could not be written (WRONGTYPE, memory is full, no permission, ...); nothing was written
--
-- Atomic because an entry must be pending or dead, never both, never neither. Everything is checked first; XADD to the
-- dead-letter stream is the only write that can fail, so it comes before XACK: EXEC does not roll back. The job ID becomes
-- free, if it was this entry's and no other group has the job. Redis >= 6.2.
-- Uses: fence, records, ids, groups, settled, tombstone, types, kept

local stream = KEYS[1]
local dead = KEYS[2]
local meta = KEYS[3]
local ids = { KEYS[4], KEYS[5], KEYS[6], KEYS[7] }
local done = { KEYS[8], KEYS[9], KEYS[10], KEYS[11] }
local group = ARGV[1]
local consumer = ARGV[2]
local retention = ARGV[3]
local entry_id = ARGV[4]
local count = tonumber(ARGV[5])
local reason = ARGV[6]
local message = ARGV[7]
local job_id = ARGV[8]
local attempts = ARGV[9]

local COPIED = 3500 -- fields; unpack fails above 3,990 with a few of ours beside them

local code = fence(stream, group, consumer, entry_id, count)
if code ~= MINE then return code end
check_ack(stream, group)
local wrong = check_stream(dead) or check_slices(ids) or check_slices(done)
if wrong then return wrong end
local entry = first_entry(stream, entry_id, entry_id)
local refers = entry and #entry[2] / 2 > COPIED
wrong = refers and check_hash(meta)
if wrong then return wrong end

-- Reserved fields of a body, where they are well formed.
local function reserved(body)
  local found = {}
  for i = 1, #body, 2 do
    local name, value = body[i], body[i + 1]
    local number = string.find(value, '^%d+$') and #value <= 14
    if (number and (name == 'sq:at' or name == 'sq:attempt' or name == 'sq:redrives'))
      or (name == 'sq:id' and #value > 0 and #value <= 512 and not string.find(value, '%c')) then
      found[name] = value
    end
  end
  return found
end

local now = server_ms()
local outcome = 1
if not entry then
  if not tombstone(dead, meta, group, consumer, entry_id, count, now) then
    return redis.error_reply('ERR the tombstone of ' .. entry_id .. ' could not be written')
  end
  outcome = 2
else
  local body = entry[2]
  local ours = reserved(body)
  if refers then
    outcome = 3
    reason = 'oversized'
    message = 'the entry has ' .. #body / 2 .. ' fields; it stays in the stream as ' .. entry_id
    body = {}
  end
  local enqueued = ours['sq:at'] or string.match(entry_id, '^%d+')
  if job_id == '' then job_id = ours['sq:id'] or entry_id end
  if attempts == '' then attempts = (ours['sq:attempt'] or 1) - 1 end
  local fields = { 'dead:reason', reason, 'dead:error', message, 'dead:source', entry_id, 'dead:job_id', job_id,
    'dead:group', group, 'dead:consumer', consumer, 'dead:deliveries', count, 'dead:attempts', attempts,
    'dead:enqueued_at', enqueued, 'dead:at', string.format('%.0f', now),
    'dead:redrives', ours['sq:redrives'] or 0 }
  for i = 1, #body, 2 do
    local name = body[i]
    if string.sub(name, 1, 5) == 'dead:' then name = 'dead:' .. name end
    fields[#fields + 1] = name
    fields[#fields + 1] = body[i + 1]
  end
  redis.call('XADD', dead, '*', unpack(fields))
  if refers then keep_entry(meta, entry_id) end
  redis.pcall('HINCRBY', meta, 'dead:' .. group, 1)
end

redis.call('XACK', stream, group, entry_id)
local others = other_groups(stream, group)
local needed = is_needed(stream, others, entry_id)
if retention == 'delete' and outcome == 1 and not needed then redis.call('XDEL', stream, entry_id) end
if job_id ~= '' then
  forget_record(done, now, group .. '/' .. job_id, 'running ' .. entry_id)
  -- While another group still has the job, its ID is not free.
  if not needed or (entry and only_group(entry[2]) == group) then forget_record(ids, now, job_id, 'queued ' .. entry_id) end
end
return outcome
