-- kept.lua: entries that stay in the stream because dead letters refer to them: too many fields to copy.
--
-- T:meta counts the letters of each such entry (kept:<entry ID>) and the entries (kept).

local function keep_entry(meta, id)
  if redis.call('HINCRBY', meta, 'kept:' .. id, 1) == 1 then redis.call('HINCRBY', meta, 'kept', 1) end
end

-- True when no letter refers to the entry any more.
local function unkeep_entry(meta, id)
  if redis.call('HEXISTS', meta, 'kept:' .. id) == 0 then return false end
  if redis.call('HINCRBY', meta, 'kept:' .. id, -1) > 0 then return false end
  redis.call('HDEL', meta, 'kept:' .. id)
  if redis.call('HINCRBY', meta, 'kept', -1) <= 0 then redis.call('HDEL', meta, 'kept') end
  return true
end
