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

-- True when the entry's body is gone. From Redis 7.0 XCLAIM would drop such an entry without a trace, so it is looked for
-- first; it leaves the group only behind its tombstone.
local function bury_if_missing(stream, dead, meta, group, consumer, id, count)
  if #redis.call('XRANGE', stream, id, id, 'COUNT', 1) > 0 then return false end
  local kind = redis.call('TYPE', dead).ok
  if (kind == 'stream' or kind == 'none') and tombstone(dead, meta, group, consumer, id, count, server_ms()) then
    redis.call('XACK', stream, group, id)
  end
  return true
end
