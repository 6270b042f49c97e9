-- migrate_drop.lua: remove the keys of a stream in the previous layout, once nothing is left in them.
--
-- KEYS[1]       lock       D:migration_lock    string, who may
-- KEYS[2]       stream     old:stream          stream
-- KEYS[3]       dead       old:dead            stream of dead letters
-- KEYS[4]       scheduled  old:scheduled       sorted set
-- KEYS[5]       jobs       old:scheduled:jobs  hash
-- KEYS[6..9]    ids        old:ids:<slice>     hashes
-- KEYS[10..13]  done       old:done:<slice>    hashes
-- KEYS[14]      meta       old:meta            hash
-- KEYS[15]      workers    old:workers         hash
-- KEYS[16]      wake       old:wake            stream
-- ARGV[1]  owner of the lock
-- ARGV[2]  ms for which it is renewed
--
-- Returns  { 1, number }  removed so many keys
--          { 0, key }     that key still holds something; nothing was removed
--          error LOCKLOST, WRONGTYPE  nothing was written
--
-- Atomic because a job that the previous version adds between the look and the removal would be lost. The keys lie in
-- several slots: never on a cluster. Redis >= 6.2.
-- Uses: ids, groups, types, moving

local lock = KEYS[1]
local streams = { KEYS[2], KEYS[3] }
local scheduled = KEYS[4]
local hashes = { KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13], KEYS[14] }
local helpers = { KEYS[15], KEYS[16] }
local owner = ARGV[1]
local ttl = ARGV[2]

local wrong = check_stream(streams[1]) or check_stream(streams[2]) or check_lock(lock, owner, ttl)
if wrong then return wrong end
for _, key in ipairs({ scheduled, unpack(hashes) }) do
  if redis.call('EXISTS', key) == 1 then return { 0, key } end
end
for _, key in ipairs(streams) do
  if redis.call('XLEN', key) > 0 then return { 0, key } end
  for _, group in ipairs(group_rows(key)) do
    if group.pending > 0 then return { 0, key } end
  end
end
return { 1, redis.call('UNLINK', streams[1], streams[2], unpack(helpers)) }
