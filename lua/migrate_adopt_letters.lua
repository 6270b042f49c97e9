-- migrate_adopt_letters.lua: move a batch of somebody's dead letters to those of a stream.
--
-- KEYS[1]  lock  D:migration_lock  string, who may
-- KEYS[2]  old   old:dead          stream; of any name
-- KEYS[3]  dead  T:dead            stream of dead letters
-- KEYS[4]  meta  T:meta            hash, counters
-- ARGV[1]  owner of the lock
-- ARGV[2]  ms for which it is renewed
-- ARGV[3]  most letters
-- ARGV[4]  bytes of letters after which no further ones are moved
-- ARGV[5]  entry ID behind which to begin, for what could not be moved; 0-0 at first
-- ARGV[6]  group whose jobs they were
-- ARGV[7]  field that holds the payload there
--
-- Returns  { moved, stuck, last }
--          stuck  how many have more fields than a script can copy, and stay
--          last   where to go on; '' at the end
--          error LOCKLOST, WRONGTYPE  nothing was written
--
-- Atomic because a letter must be in one of both. The keys lie in several slots: never on a cluster. Redis >= 6.2.
-- Uses: ids, groups, types, moving

local lock = KEYS[1]
local old = KEYS[2]
local dead = KEYS[3]
local meta = KEYS[4]
local owner = ARGV[1]
local ttl = ARGV[2]
local most = tonumber(ARGV[3])
local most_bytes = tonumber(ARGV[4])
local after = ARGV[5]
local group = ARGV[6]
local payload = ARGV[7]

local wrong = check_stream(old) or check_stream(dead) or check_hash(meta) or check_lock(lock, owner, ttl)
if wrong then return wrong end

local function letter_of(id, fields)
  local ms = string.match(id, '^%d+') -- all that is known of when
  local letter = { 'dead:reason', 'adopted', 'dead:error', 'it was entry ' .. id .. ' of dead letters that others kept',
    'dead:source', id, 'dead:job_id', id, 'dead:group', group, 'dead:consumer', '', 'dead:deliveries', 0, 'dead:attempts', 0,
    'dead:enqueued_at', ms, 'dead:at', ms, 'dead:redrives', 0 }
  for i = 1, #fields, 2 do
    local name = fields[i]
    if string.sub(name, 1, 5) == 'dead:' then name = 'dead:' .. name end
    letter[#letter + 1], letter[#letter + 2] = name, fields[i + 1]
  end
  return letter
end

local looked, moved, stuck, bytes, last, page = 0, 0, 0, 0, '', nil
while looked < most and bytes <= most_bytes and (not page or #page > 0) do
  page = redis.call('XRANGE', old, '(' .. (last ~= '' and last or after), '+', 'COUNT', math.min(10, most - looked))
  for _, entry in ipairs(page) do
    last = entry[1]
    looked, bytes = looked + 1, bytes + size_of(entry)
    if #entry[2] > 7000 then
      stuck = stuck + 1
    else
      redis.call('XADD', dead, '*', unpack(letter_of(last, with_payload(entry[2], payload))))
      redis.call('XDEL', old, last)
      moved = moved + 1
    end
  end
end
if moved > 0 then redis.pcall('HINCRBY', meta, 'dead:' .. group, moved) end
return { moved, stuck, last }
