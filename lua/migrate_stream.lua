-- migrate_stream.lua: give a stream of the previous layout, with its groups and pending entries, the name that it has in this one.
--
-- KEYS[1]  lock    D:migration_lock  string, who may
-- KEYS[2]  old     old:stream        stream
-- KEYS[3]  stream  T:stream          stream; must not be there
-- ARGV[1]  owner of the lock
-- ARGV[2]  ms for which it is renewed
--
-- Returns  { 1, entries }  moved
--          { 0 }           there is none
--          { -1 }          this layout has one already: its entries must be moved one by one (migrate_entries.lua)
--          error LOCKLOST, WRONGTYPE  nothing was written
--
-- Atomic because readers of the previous version wait at the old name: they must find their group there at every instant.
-- The empty stream that they find gives out IDs behind those that moved, so that no ID is there twice. The keys lie in
-- several slots: never on a cluster. Redis >= 6.2.
-- Uses: ids, groups, types, moving

local lock = KEYS[1]
local old = KEYS[2]
local stream = KEYS[3]
local owner = ARGV[1]
local ttl = ARGV[2]

local wrong = check_stream(old) or check_stream(stream) or check_lock(lock, owner, ttl)
if wrong then return wrong end
if redis.call('EXISTS', old) == 0 then return { 0 } end
if redis.call('EXISTS', stream) == 1 then return { -1 } end

local groups = group_rows(old)
local last = by_name({ redis.call('XINFO', 'STREAM', old) })[1]['last-generated-id']
local entries = redis.call('XLEN', old)
redis.call('RENAME', old, stream)
for _, group in ipairs(groups) do redis.call('XGROUP', 'CREATE', old, group.name, '0', 'MKSTREAM') end
if #groups > 0 then redis.call('XSETID', old, last) end
return { 1, entries }
