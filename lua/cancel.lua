-- cancel.lua: remove a job that no group has begun.
--
-- KEYS[1]     stream  T:stream        stream
-- KEYS[2..5]  ids     T:ids:<slice>   hashes, job ID -> queued <entry ID> | done <entry ID>
-- ARGV[1]  job ID
--
-- Returns  { 1, entry ID }  removed; its ID is free again
--          { 0 }            no such job: never added, dead, cancelled, or forgotten
--          { -1, state }    pending (a group has begun it) or done; nothing was written. Also pending: where there are
--                           several groups, a job that one of them tries again; the others may have it in another entry
--          error WRONGTYPE  a slice of T:ids is no hash; nothing was written
--
-- Atomic because a read that comes between the look and XDEL would leave a running job without its entry. Redis >= 6.2.
-- Uses: ids, groups, records

local stream = KEYS[1]
local ids = { KEYS[2], KEYS[3], KEYS[4], KEYS[5] }
local job_id = ARGV[1]

local wrong = check_slices(ids)
if wrong then return wrong end

local now = server_ms()
local record = find_record(ids, now, job_id)
local word, entry_id = string.match(record or '', '^(%a+) (.*)$')
if word == 'done' then return { -1, 'done' } end
-- A generated ID is the ID of its first entry.
entry_id = entry_id or job_id
if not is_id(entry_id) then return { 0 } end

local groups = group_rows(stream)
local state, entry = entry_state(stream, entry_id, groups)
if not record and entry and (value_of(entry[2], 'sq:id') or job_id) ~= job_id then return { 0 } end
if state == 'pending' then return { -1, state } end
if not entry then return { 0 } end
if state ~= 'ready' then return { -1, 'done' } end
local only = only_group(entry[2])
-- Begun by one group, it may still wait for the others under its first entry.
if #groups > 1 and (value_of(entry[2], 'sq:attempt') or value_of(entry[2], 'sq:redrives')) then return { -1, 'pending' } end
for _, group in ipairs(groups) do
  local handles = not only or group.name == only
  if handles and not id_after(entry_id, group['last-delivered-id']) then return { -1, 'pending' } end
end
redis.call('XDEL', stream, entry_id)
if record then forget_record(ids, now, job_id, record) end
return { 1, entry_id }
