-- trim.lua: remove finished entries from the stream; one bounded pass.
--
-- KEYS[1]  stream  T:stream  stream
-- KEYS[2]  dead    T:dead    stream of dead letters
-- KEYS[3]  meta    T:meta    hash; cursor:trim is where the next pass starts, kept:<entry ID> and kept what letters refer to
-- ARGV[1]  ms that finished entries are kept, or '' for no such rule
-- ARGV[2]  most entries that the stream may hold before finished ones go, or '' for no such rule
-- ARGV[3]  most entries to look at one by one
-- ARGV[4]  cursor to start at (the first is 0-0), or '' to start where the last such pass ended, and to note where this one
--          ends
-- ARGV[5]  entry ID to stop at, or '' for the last one that every group has read
--
-- Returns  { removed, cursor, stop }
--          removed  how many entries
--          cursor   where to go on: ( and an entry ID, a comma, how many entries up to it stay; '' when the end was reached
--          stop     entry ID at which this walk stops
--          error WRONGTYPE  the stream's key holds something else; nothing was written
--
-- An entry is finished when every group has read it, none has it pending, and no dead letter refers to it. Without rules all
-- finished entries go; with rules those that are older than the first, and the oldest while there are more than the second.
--
-- Atomic because a group may read, settle, or be made at any time, and what it still needs must stay. Redis >= 6.2.
-- Uses: ids, groups, records, types

local stream = KEYS[1]
local dead = KEYS[2]
local meta = KEYS[3]
local keep_ms = tonumber(ARGV[1])
local keep_last = tonumber(ARGV[2])
local look = tonumber(ARGV[3])
local from = ARGV[4]
local stop = ARGV[5]

local NODES = 10000 -- most entries of one XTRIM, which removes whole nodes of about 100
local BYTES = 4194304 -- most bytes of bodies looked at in one pass

local wrong = check_stream(stream) or check_stream(dead)
if wrong then return wrong end
local stored = from == ''
if stored then from = redis.call('HGET', meta, 'cursor:trim') or '0-0' end
local function answer(removed, cursor)
  if stored then
    if cursor == '' then redis.call('HDEL', meta, 'cursor:trim')
    else redis.pcall('HSET', meta, 'cursor:trim', cursor) end
  end
  return { removed, cursor, stop }
end

local groups = group_rows(stream)
if #groups == 0 then return answer(0, '') end
local read_by_all, first_pending
for _, group in ipairs(groups) do
  local last = group['last-delivered-id']
  if not read_by_all or id_after(read_by_all, last) then read_by_all = last end
  local row = redis.call('XPENDING', stream, group.name, '-', '+', 1)[1]
  if row and (not first_pending or id_after(first_pending, row[1])) then first_pending = row[1] end
end
if stop == '' or id_after(stop, read_by_all) then stop = read_by_all end
local cutoff = keep_ms and string.format('%.0f', math.max(server_ms() - keep_ms, 0)) .. '-0'
local kept = redis.call('HEXISTS', meta, 'kept') == 1 and redis.call('XLEN', dead) > 0

-- Most of it goes by whole nodes, from the head: everything below the first entry that somebody needs.
if not kept and not keep_last then
  local bound = stop
  if first_pending and id_after(bound, first_pending) then bound = first_pending end
  if cutoff and id_after(bound, cutoff) then bound = cutoff end
  local removed = redis.call('XTRIM', stream, 'MINID', '~', bound, 'LIMIT', NODES)
  if removed > 0 then return answer(removed, from) end
end

-- Entries from the cursor on that are not among the newest. What stays before it counts, so it travels with the cursor.
local cursor, stay = string.match(from, '^([^,]+),?(%d*)$')
stay = tonumber(stay) or 0
local excess = keep_last and redis.call('XLEN', stream) - stay - keep_last or 0
local function lets_go(id)
  if not cutoff and not keep_last then return true end
  return (cutoff and id_after(cutoff, id)) or excess > 0
end
local function is_kept(id) return kept and redis.call('HEXISTS', meta, 'kept:' .. id) == 1 end

-- There may be more pending than entries, since some may have lost their bodies: what lies behind a full reply is not known,
-- and stays for this time. Returns where that begins, or nil.
local function note_pending(group, first, last, n, pending)
  local rows = redis.call('XPENDING', stream, group, first, last, 2 * n)
  for _, row in ipairs(rows) do pending[row[1]] = true end
  return #rows == 2 * n and rows[2 * n][1] or nil
end

-- The rest one by one, between entries that are pending. Bodies come with the IDs, so pages grow only while those are small.
local removed, page, bytes = 0, 10, 0
while look > 0 and bytes < BYTES do
  local rows = redis.call('XRANGE', stream, cursor, stop, 'COUNT', math.min(page, look))
  if #rows == 0 then return answer(removed, '') end
  local size, pending, gone, unsure = 0, {}, {}, nil
  local last = rows[#rows][1]
  for _, group in ipairs(groups) do
    local unknown = note_pending(group.name, rows[1][1], last, #rows, pending)
    if unknown and (not unsure or id_after(unsure, unknown)) then unsure = unknown end
  end
  for _, row in ipairs(rows) do
    size = size + size_of(row)
    local needed = pending[row[1]] or (unsure and id_after(row[1], unsure))
    if lets_go(row[1]) and not needed and not is_kept(row[1]) then gone[#gone + 1] = row[1]
    else stay = stay + 1 end
    excess = excess - 1
  end
  if #gone > 0 then removed = removed + redis.call('XDEL', stream, unpack(gone)) end
  if not lets_go(last) then return answer(removed, '') end -- nor anything behind it
  look = look - #rows
  bytes = bytes + size
  page = size < 65536 and 100 or 10
  cursor = '(' .. last
end
return answer(removed, cursor .. ',' .. string.format('%.0f', stay))
