-- migrate_entries.lua: move a batch of a stream's entries out of the previous layout, where this one has such a stream already.
--
-- KEYS[1]       lock      D:migration_lock  string, who may
-- KEYS[2]       old       old:stream        stream
-- KEYS[3]       old meta  old:meta          hash
-- KEYS[4..7]    old ids   old:ids:<slice>   hashes, job ID -> queued <entry ID> | done <entry ID>
-- KEYS[8]       stream    T:stream          stream
-- KEYS[9]       dead      T:dead            stream of dead letters
-- KEYS[10]      meta      T:meta            hash
-- KEYS[11]      times     T:scheduled       sorted set
-- KEYS[12..15]  ids       T:ids:<slice>     hashes
-- ARGV[1]  owner of the lock
-- ARGV[2]  ms for which it is renewed
-- ARGV[3]  most entries
-- ARGV[4]  bytes of entries after which no further ones are moved
-- ARGV[5]  entry ID behind which to begin, for what could not be moved; 0-0 at first
-- ARGV[6]  field that holds the payload there
--
-- Returns  { moved, superseded, finished, { stuck, ... }, last }
--          superseded  removed, since this layout has a job of that ID already
--          finished    removed, since every group was done with them, or their bodies were gone (a dead letter says so)
--          stuck       entries that cannot be copied and stay: too many fields, or a dead letter refers to them
--          last        where to go on; '' at the end
--          error LOCKLOST, WRONGTYPE  nothing was written
--
-- Atomic because a job must be in one of the layouts, never in both, never in neither. A copy gets an ID of this stream's, and
-- the one that it had as sq:id. Who held it holds it still, with its count and idle time, if the group had read all that was
-- in front; else the group reads it anew. The keys lie in several slots: never on a cluster. Redis >= 6.2.
-- Uses: ids, groups, types, records, timers, tombstone, moving, superseded, copying

local lock, old, old_meta = KEYS[1], KEYS[2], KEYS[3]
local stream, dead, meta, times = KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local ids = { KEYS[12], KEYS[13], KEYS[14], KEYS[15] }
local all_ids = { KEYS[4], KEYS[5], KEYS[6], KEYS[7], unpack(ids) }
local owner = ARGV[1]
local ttl = ARGV[2]
local most = tonumber(ARGV[3])
local most_bytes = tonumber(ARGV[4])
local after = ARGV[5]
local payload = ARGV[6]

local wrong = check_stream(old) or check_stream(stream) or check_stream(dead) or check_type(times, 'zset')
  or check_hash(old_meta) or check_hash(meta) or check_slices(all_ids) or check_lock(lock, owner, ttl)
if wrong then return wrong end

local old_groups = group_rows(old)
create_missing_groups(stream, old_groups)
local groups = group_rows(stream)
local now = server_ms()
local moved, superseded, finished, stuck, bytes, last = 0, 0, 0, {}, 0, ''

local function leave_old(id)
  for _, group in ipairs(old_groups) do redis.call('XACK', old, group.name, id) end
  redis.call('XDEL', old, id)
end

local function is_kept(id)
  return redis.call('HEXISTS', old_meta, 'kept:' .. id) == 1 or redis.call('HEXISTS', meta, 'kept:' .. id) == 1
end

local function move(id, fields)
  local wanted = standing_of(old, old_groups, groups, id, fields)
  local job_id = chosen_id(fields)
  if #fields > 7000 or is_kept(id) then
    stuck[#stuck + 1] = id
    return
  elseif not wanted then
    finished = finished + 1
  elseif job_id and (timers_of(times, job_id, groups)[1] or is_superseded(stream, job_id, find_record(ids, now, job_id))) then
    superseded = superseded + 1
  else
    local first = copy_entry(stream, groups, id, with_payload(fields, payload), wanted)
    if job_id then point_records(all_ids, job_id, id, first) end
    moved = moved + 1
  end
  leave_old(id)
end

local looked, page = 0, nil
while looked < most and bytes <= most_bytes and (not page or #page > 0) do
  page = redis.call('XRANGE', old, '(' .. (last ~= '' and last or after), '+', 'COUNT', math.min(10, most - looked))
  for _, entry in ipairs(page) do
    last = entry[1]
    looked, bytes = looked + 1, bytes + size_of(entry)
    move(entry[1], entry[2])
  end
end
if looked == 0 then
  for _, group in ipairs(old_groups) do
    for _, row in ipairs(redis.call('XPENDING', old, group.name, '-', '+', most)) do
      local is_gone = #redis.call('XRANGE', old, row[1], row[1], 'COUNT', 1) == 0
      if is_gone and tombstone(dead, meta, group.name, row[2], row[1], row[4], now) then
        redis.call('XACK', old, group.name, row[1])
        finished, last = finished + 1, after
      end
    end
  end
end
return { moved, superseded, finished, stuck, last }
