-- migrate_records.lua: move a batch of what is remembered of job IDs out of a slice of the previous layout.
--
-- KEYS[1]     lock    D:migration_lock  string, who may
-- KEYS[2]     old     old:ids:<slice>   hash
-- KEYS[3..6]  slices  T:ids:<slice>     hashes; or those of what is done, as the old one then is
-- ARGV[1]  owner of the lock
-- ARGV[2]  ms for which it is renewed
-- ARGV[3]  cursor; 0 is the first
-- ARGV[4]  about how many
-- ARGV[5]  number of the slice that takes them, from 1
--
-- Returns  { cursor, moved }  0 at the end
--          error LOCKLOST, WRONGTYPE  nothing was written
--
-- Atomic because a record must be found at every instant, and in one place. What this layout remembers already stays. The
-- slice is kept for as long as either was to be, so nothing is forgotten early. The keys lie in several slots: never on a
-- cluster. Redis >= 6.2.
-- Uses: types, records, moving

local lock = KEYS[1]
local old = KEYS[2]
local slices = { KEYS[3], KEYS[4], KEYS[5], KEYS[6] }
local owner = ARGV[1]
local ttl = ARGV[2]
local cursor = ARGV[3]
local count = ARGV[4]
local target = slices[tonumber(ARGV[5])]

local wrong = check_hash(old) or check_slices({ old, unpack(slices) }) or check_lock(lock, owner, ttl)
if wrong then return wrong end
if redis.call('EXISTS', old) == 0 then return { '0', 0 } end

local now = server_ms()
local page = redis.call('HSCAN', old, cursor, 'COUNT', count)
local rows = page[2]
local moved = 0
for from = 1, #rows, 1000 do
  local names, values = {}, {}
  for i = from, math.min(from + 999, #rows), 2 do
    if rows[i] ~= '' then
      names[#names + 1] = rows[i]
      values[rows[i]] = rows[i + 1]
    end
  end
  if #names > 0 then
    local known, pairs_ = find_records(slices, now, names), {}
    for _, name in ipairs(names) do
      if not known[name] then pairs_[#pairs_ + 1], pairs_[#pairs_ + 2] = name, values[name] end
    end
    if #pairs_ > 0 then redis.call('HSET', target, unpack(pairs_)) end
    redis.call('HDEL', old, unpack(names))
    moved = moved + #pairs_ / 2
  end
end
if redis.call('EXISTS', target) == 1 then
  local ends = math.max(tonumber(redis.call('HGET', old, '') or 0), tonumber(redis.call('HGET', target, '') or 0))
  local left = math.max(redis.call('PTTL', old), redis.call('PTTL', target))
  redis.call('HSET', target, '', string.format('%.0f', ends))
  if left > 0 then redis.call('PEXPIRE', target, left) end
end
if page[1] == '0' and redis.call('HLEN', old) <= 1 then redis.call('HDEL', old, '') end
return { page[1], moved }
