-- probe.lua: a trial of the server: does one script write to two keys? Leaves nothing behind.
--
-- KEYS[1]  one    T:probe:<token>  hash, then string; made and removed
-- KEYS[2]  other  T:probe:<token>  the same
-- ARGV[1]  ms after which the keys would go by themselves
--
-- Returns  commands that the user may not run; empty when all is well
--          error (OOM, MISCONF, READONLY, NOREPLICAS, ...)  the server refuses writes
--
-- Before 7.0 no script can ask whether HSET, HINCRBY and SET are allowed: here they are run. UNLINK comes first, when there
-- is nothing to remove: who may not run it leaves keys behind, and so writes none.
--
-- Atomic because what is written must be gone before anybody can see it, whatever happens to the caller. Redis >= 6.2.
-- Uses: records, rights

local keys = { KEYS[1], KEYS[2] }
local at = string.format('%.0f', server_ms() + tonumber(ARGV[1]))
local denied, refused = {}, nil

local function try(command, key, ...)
  local reply = redis.pcall(command, key, ...)
  if is_denied(reply) then
    denied[command] = true
  elseif type(reply) == 'table' and reply.err then
    refused = refused or reply
  end
end

for _, key in ipairs(keys) do try('UNLINK', key) end
if not denied['UNLINK'] and not refused then
  for _, key in ipairs(keys) do
    try('HSET', key, 'f', 'v')
    try('HINCRBY', key, 'n', '1')
    try('PEXPIREAT', key, at)
    try('UNLINK', key)
    try('SET', key, 'v', 'NX', 'PX', ARGV[1])
    try('UNLINK', key)
  end
end
if refused then return refused end
local names = {}
for name in pairs(denied) do names[#names + 1] = name end
return names
