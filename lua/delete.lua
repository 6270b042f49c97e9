-- delete.lua: remove a stream's keys, all but those that effects and maintenance have made.
--
-- KEYS[1]       stream     T:stream          stream
-- KEYS[2]       dead       T:dead            stream of dead letters
-- KEYS[3]       scheduled  T:scheduled       sorted set
-- KEYS[4]       jobs       T:scheduled:jobs  hash
-- KEYS[5..8]    ids        T:ids:<slice>     hashes
-- KEYS[9..12]   done       T:done:<slice>    hashes
-- KEYS[13]      meta       T:meta            hash
-- KEYS[14]      workers    T:workers         hash
-- KEYS[15]      wake       T:wake            stream
-- ARGV[1]  1 to remove it with the work that it has left, else 0
--
-- Returns  { 1, number }  removed so many keys
--          { 0, unread, pending, scheduled, dead }  it has work left; nothing was written. unread counts at most 1 a group
--          error WRONGTYPE  a key holds something else; nothing was written
--
-- Atomic because a job that is added between the look and the removal would be lost. Redis >= 6.2.
-- Uses: ids, groups, types

local stream = KEYS[1]
local dead = KEYS[2]
local scheduled = KEYS[3]
local rest = { KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12], KEYS[13], KEYS[14], KEYS[15] }
local force = ARGV[1] == '1'

if not force then
  local wrong = check_stream(stream) or check_stream(dead)
  if wrong then return wrong end
  local groups = group_rows(stream)
  local unread, pending = 0, 0
  for _, group in ipairs(groups) do
    pending = pending + group.pending
    if entry_behind(stream, group['last-delivered-id']) then unread = unread + 1 end
  end
  if #groups == 0 then unread = redis.call('XLEN', stream) end
  -- An entry without a time is a job, too: promote.lua makes a dead letter of it.
  local due = math.max(redis.call('ZCARD', scheduled), redis.call('HLEN', rest[1]))
  local letters = redis.call('XLEN', dead)
  if unread + pending + due + letters > 0 then return { 0, unread, pending, due, letters } end
end
return { 1, redis.call('UNLINK', stream, dead, scheduled, unpack(rest)) }
