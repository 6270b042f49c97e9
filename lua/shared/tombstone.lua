-- tombstone.lua: a dead letter for a pending entry whose body was deleted or trimmed by somebody.

-- True when it was written. False (key of another type, XADD refused): the caller says so in its reply.
local function tombstone(dead, meta, group, consumer, id, count, now)
  local reply = redis.pcall('XADD', dead, '*',
    'dead:reason', 'entry_missing', 'dead:error', 'the entry was removed from the stream while it was pending',
    'dead:source', id, 'dead:job_id', '', 'dead:group', group, 'dead:consumer', consumer,
    'dead:deliveries', count, 'dead:attempts', 0, 'dead:at', string.format('%.0f', now), 'dead:redrives', 0)
  if type(reply) == 'table' and reply.err then return false end
  redis.pcall('HINCRBY', meta, 'dead:' .. group, 1)
  return true
end
