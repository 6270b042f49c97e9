-- schedule.lua: let a job wait for its time, unless its ID is known already.
--
-- KEYS[1]     stream     T:stream          stream
-- KEYS[2]     scheduled  T:scheduled       sorted set, timer ID -> due time
-- KEYS[3]     jobs       T:scheduled:jobs  hash, timer ID -> packed entry
-- KEYS[4]     wake       T:wake            stream of one entry, for who sleeps until the first is due
-- KEYS[5..8]  ids        T:ids:<slice>     hashes, job ID -> queued <entry ID> | done <entry ID>
-- ARGV[1]  slice length in ms
-- ARGV[2]  job ID
-- ARGV[3]  in or at
-- ARGV[4]  ms from now, or ms of the server's clock; what is past is now
-- ARGV[5]  most ms that it may be ahead
-- ARGV[6]  kind of the job ID, generated or chosen
-- ARGV[7]  1 to replace a job of this ID that waits, else 0
-- ARGV[8..]  field, value, field, value ...
--
-- Returns  { 1, '', 'scheduled' }      it waits
--          { 1, entry ID, 'ready' }    it is due already: added under that ID
--          { 0, '', 'scheduled' }      known: it waits for its time, or for its next attempt
--          { 0, entry ID, 'ready' }    known: a group that handles it has not read it yet
--          { 0, entry ID, 'pending' }  known: a group has read it and not settled it
--          { 0, entry ID, 'done' }     known: settled within the last idempotency_ttl
--          { -1, ms, 'far' }           not scheduled: it is so many ms ahead. Nothing was written
--          error                       it could not be written (WRONGTYPE, memory is full, ...); nothing was
--
-- Atomic because two producers with one ID must get one job, and because a time without an entry, or an entry without a
-- time, would be no job. What is replaced waits for whom it waited for before: the next attempt of one group stays that
-- group's. While a job waits no record says so: its timer does, however long. Redis >= 6.2.
-- Uses: ids, groups, records, types, timers

local stream = KEYS[1]
local scheduled = KEYS[2]
local jobs = KEYS[3]
local wake = KEYS[4]
local ids = { KEYS[5], KEYS[6], KEYS[7], KEYS[8] }
local slice_ms = tonumber(ARGV[1])
local job_id = ARGV[2]
local most = tonumber(ARGV[5])
local is_chosen = ARGV[6] == 'chosen'
local replaces = ARGV[7] == '1'

local wrong = check_stream(stream) or check_timers(scheduled, jobs) or check_slices(ids)
if wrong then return wrong end
local now = server_ms()
local due = due_time(now, ARGV[3], ARGV[4], most)
if not due then return { -1, string.format('%.0f', tonumber(ARGV[4]) - now), 'far' } end

local groups = is_chosen and group_rows(stream) or {}
local timers = is_chosen and timers_of(scheduled, job_id, groups) or {}
if #timers > 0 and not replaces then return { 0, '', 'scheduled' } end
if #timers == 0 and is_chosen then
  local word, entry_id = string.match(find_record(ids, now, job_id) or '', '^(%a+) (.*)$')
  local state = word == 'done' and word or (is_id(entry_id or '') and entry_state(stream, entry_id, groups))
  if state then return { 0, entry_id, state } end
end

-- The entry for one group, or for all.
local function fields_for(group)
  local fields = {}
  for at = 8, #ARGV do fields[#fields + 1] = ARGV[at] end
  local ours = { 'sq:id', job_id, 'sq:at', string.format('%.0f', now) }
  if not is_chosen then ours[#ours + 1], ours[#ours + 2] = 'sq:generated', '1' end
  if group ~= '' then ours[#ours + 1], ours[#ours + 2] = 'sq:group', group end
  for _, part in ipairs(ours) do fields[#fields + 1] = part end
  return fields
end

if #timers == 0 then timers[1] = timer_id('', job_id) end
if due > now then
  for _, id in ipairs(timers) do put_timer(scheduled, jobs, wake, id, due, fields_for(split_timer(id))) end
  return { 1, '', 'scheduled' }
end
local entry_id
for _, id in ipairs(timers) do
  entry_id = redis.call('XADD', stream, '*', unpack(fields_for(split_timer(id))))
  drop_timers(scheduled, jobs, { id })
end
if is_chosen then put_records(ids, now, slice_ms, { job_id }, { job_id, 'queued ' .. entry_id }) end
return { 1, entry_id, 'ready' }
