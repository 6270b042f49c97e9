-- types.lua: does a key hold what it should? Asked before the first write: Lua does not roll back.

local function check_type(key, wanted)
  local kind = redis.call('TYPE', key).ok
  if kind ~= wanted and kind ~= 'none' then
    return redis.error_reply('WRONGTYPE ' .. key .. ' holds a ' .. kind .. ', not a ' .. wanted)
  end
end

local function check_stream(key) return check_type(key, 'stream') end

local function check_hash(key) return check_type(key, 'hash') end
