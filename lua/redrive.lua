-- redrive.lua: give a dead letter's job back to its group, with all its attempts, and remove the letter.
--
-- KEYS[1]      stream     T:stream         stream
-- KEYS[2]      dead       T:dead           stream of dead letters
-- KEYS[3]      scheduled  T:scheduled      sorted set, timer ID -> due time
-- KEYS[4]      meta       T:meta           hash, counters
-- KEYS[5..8]   ids        T:ids:<slice>    hashes, job ID -> queued <entry ID> | done <entry ID>
-- KEYS[9..12]  done       T:done:<slice>   hashes, <group>/<job ID> -> running <entry ID> | done <result>
-- ARGV[1]  entry ID of the letter
-- ARGV[2]  job ID to give it, or '' for its own
-- ARGV[3]  most redrives that the job may have had
-- ARGV[4]  slice length in ms
-- ARGV[5]  1 only to say what would become of it
-- ARGV[6]  1 to give it another payload
-- ARGV[7]  that payload, else ''
--
-- Returns  { 1, entry ID }      added again under that ID; the letter is gone. '' if nothing was to be written
--          { 0 }                there is no such letter
--          { -1, state }        its job ID is scheduled, ready, pending or done again: superseded; nothing was written
--          { -2, why }          it cannot be redriven; nothing was written
--          error                the entry could not be added (WRONGTYPE, memory is full, ...); nothing was written
--
-- Atomic because the job must be dead or ready, never both, never neither; so two redrives of one letter make one run. XADD
-- is the write that can fail, so it comes first. Only the letter's group handles the entry (sq:group). All fields but ours
-- are kept byte for byte and in order; another payload stands where the first field job stood. Redis >= 6.2.
-- Uses: fence, ids, groups, records, types, letters, timers

local stream = KEYS[1]
local dead = KEYS[2]
local scheduled = KEYS[3]
local meta = KEYS[4]
local ids = { KEYS[5], KEYS[6], KEYS[7], KEYS[8] }
local done = { KEYS[9], KEYS[10], KEYS[11], KEYS[12] }
local letter_id = ARGV[1]
local new_id = ARGV[2]
local most = tonumber(ARGV[3])
local slice_ms = tonumber(ARGV[4])
local only_look = ARGV[5] == '1'
local payload = ARGV[6] == '1' and ARGV[7] or nil

local REPLACED = { ['sq:id'] = true, ['sq:generated'] = true, ['sq:at'] = true, ['sq:attempt'] = true,
  ['sq:group'] = true, ['sq:errors'] = true, ['sq:redrives'] = true }

local wrong = check_stream(stream) or check_stream(dead) or check_type(scheduled, 'zset')
  or check_slices(ids) or check_slices(done)
if wrong then return wrong end
local letter = first_entry(dead, letter_id, letter_id)
if not letter then return { 0 } end
local about, original = read_letter(letter[2])
for _, name in ipairs({ 'source', 'job_id', 'group' }) do
  if not about[name] then return { -2, 'it has no field dead:' .. name .. ': somebody else wrote it' } end
end
if about.reason == 'entry_missing' then return { -2, 'its body was gone when it died' } end
if is_reference(about, original) then return { -2, 'it has too many fields to be copied; its entry is ' .. about.source } end

local fields, ours = {}, {}
for i = 1, #original, 2 do
  if REPLACED[original[i]] then
    ours[original[i]] = original[i + 1]
  else
    fields[#fields + 1] = original[i]
    fields[#fields + 1] = original[i + 1]
    if payload and original[i] == 'job' then fields[#fields], payload = payload, nil end
  end
end
if payload then fields[#fields + 1], fields[#fields + 2] = 'job', payload end
local group = about.group
if about.reason == 'unknown_group' then group = ours['sq:group'] or group end
local exists = false
local groups = group_rows(stream)
for _, row in ipairs(groups) do exists = exists or row.name == group end
if not exists then return { -2, 'its group ' .. group .. ' does not exist' } end
local redrives = (tonumber(about.redrives) or 0) + 1
if redrives > most then return { -2, 'it was redriven ' .. redrives - 1 .. ' times already' } end

local job_id = new_id ~= '' and new_id or about.job_id
local chosen = new_id ~= '' or (ours['sq:id'] == job_id and not ours['sq:generated'])
local now = server_ms()

-- What the group still has, or had, under this ID; another group's retry of it does not count.
local function holder()
  if timer_for(scheduled, group, job_id) then return 'scheduled' end
  local word, value = string.match(find_record(done, now, group .. '/' .. job_id) or '', '^(%a+) (.*)$')
  if word == 'done' then return 'done' end
  if word == 'running' and is_id(value) and pending_rows(stream, group, value, value, 1)[1] then return 'pending' end
  word, value = string.match(find_record(ids, now, job_id) or '', '^(%a+) (.*)$')
  local entry = word == 'queued' and is_id(value) and first_entry(stream, value, value)
  local only = entry and only_group(entry[2])
  if not entry or (only and only ~= group) then return end
  if pending_rows(stream, group, value, value, 1)[1] then return 'pending' end
  for _, row in ipairs(groups) do
    if row.name == group and id_after(value, row['last-delivered-id']) then return 'ready' end
  end
end

if chosen then
  local state = holder()
  if state then return { -1, state } end
end

if only_look then return { 1, '' } end
local enqueued = ours['sq:at'] or about.enqueued_at or string.match(about.source, '^%d+')
local again = { 'sq:id', job_id, 'sq:at', enqueued, 'sq:group', group, 'sq:redrives', redrives }
if not chosen then again[#again + 1], again[#again + 2] = 'sq:generated', '1' end
for _, part in ipairs(again) do fields[#fields + 1] = part end
local entry_id = redis.call('XADD', stream, '*', unpack(fields))
redis.call('XDEL', dead, letter_id)
if chosen then put_records(ids, now, slice_ms, { job_id }, { job_id, 'queued ' .. entry_id }) end
redis.pcall('HINCRBY', meta, 'redriven:' .. group, 1)
return { 1, entry_id }
