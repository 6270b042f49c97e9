-- format.lua: the version of the format in which a stream is stored. Who finds none writes that of this version.

-- Behind a write that frees memory, or nothing: a version that cannot be noted now is noted the next time.
local function note_format(meta)
  if redis.call('HEXISTS', meta, 'format') == 0 then redis.pcall('HSET', meta, 'format', '1.0') end
end
