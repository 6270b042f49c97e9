-- cancel.lua: remove a job that waits for its time, or that no group has begun.
--
-- KEYS[1]     stream     T:stream          stream
-- KEYS[2]     scheduled  T:scheduled       sorted set, timer ID -> due time
-- KEYS[3]     jobs       T:scheduled:jobs  hash, timer ID -> packed entry
-- KEYS[4..7]  ids        T:ids:<slice>     hashes, job ID -> queued <entry ID> | done <entry ID>
-- ARGV[1]  job ID
-- ARGV[2]  group: its next attempt is removed, but not another group's
-- ARGV[3]  1 to remove it only if it waits for its time, else 0
--
-- Returns  { 1, entry ID }  removed; its ID is free again
--          { 1, '' }        removed from what waits for its time
--          { 0 }            no such job: never added, dead, cancelled, or forgotten
--          { -1, state }    pending (a group has begun it) or done; nothing was written. Also pending: where there are
--                           several groups, a job that one of them tries again, or whose next attempt there was replaced;
--                           the others may have it in another entry.
--                           With ARGV[3] also ready, and { 0 } where it is done
--          error WRONGTYPE  a key holds something else; nothing was written
--
-- Atomic because a read that comes between the look and XDEL would leave a running job without its entry. Redis >= 6.2.
-- Uses: ids, groups, records, types, timers

local stream = KEYS[1]
local scheduled = KEYS[2]
local jobs = KEYS[3]
local ids = { KEYS[4], KEYS[5], KEYS[6], KEYS[7] }
local job_id = ARGV[1]
local own_group = ARGV[2]
local only_scheduled = ARGV[3] == '1'

local wrong = check_timers(scheduled, jobs) or check_slices(ids)
if wrong then return wrong end

local now = server_ms()
local record = find_record(ids, now, job_id)
local word, entry_id = string.match(record or '', '^(%a+) (.*)$')
local timer = timer_for(scheduled, own_group, job_id)
if timer then
  -- Of the entry of an attempt before, unless another group has still to do with that.
  local is_over = word == 'queued' and not (is_id(entry_id) and entry_state(stream, entry_id, group_rows(stream)))
  drop_timers(scheduled, jobs, { timer })
  if is_over then forget_record(ids, now, job_id, record) end
  return { 1, '' }
end

local is_done = only_scheduled and { 0 } or { -1, 'done' }
if word == 'done' then return is_done end
-- A generated ID is the ID of its first entry.
entry_id = entry_id or job_id
if not is_id(entry_id) then return { 0 } end

local groups = group_rows(stream)
local state, entry = entry_state(stream, entry_id, groups)
if not record and entry and (value_of(entry[2], 'sq:id') or job_id) ~= job_id then return { 0 } end
if state == 'pending' then return { -1, state } end
if not entry then return { 0 } end
if state ~= 'ready' then return is_done end
local only = only_group(entry[2])
-- Begun by one group (it tries it again, or what it would have tried was replaced), the others may have it in another entry.
local begun = record or value_of(entry[2], 'sq:attempt') or value_of(entry[2], 'sq:redrives')
for _, group in ipairs(groups) do
  if only and begun and group.name ~= only then return { -1, 'pending' } end
  local handles = not only or group.name == only
  if handles and not id_after(entry_id, group['last-delivered-id']) then return { -1, 'pending' } end
end
if only_scheduled then return { -1, 'ready' } end
redis.call('XDEL', stream, entry_id)
if record then forget_record(ids, now, job_id, record) end
return { 1, entry_id }
