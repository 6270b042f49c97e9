-- letters.lua: dead letters, read back.

-- Their metadata by name, and the original fields in order. An original name that began with dead: got one more in front.
local function read_letter(fields)
  local meta, original = {}, {}
  for i = 1, #fields, 2 do
    local name = fields[i]
    if string.sub(name, 1, 10) == 'dead:dead:' then
      name = string.sub(name, 6)
    elseif string.sub(name, 1, 5) == 'dead:' then
      meta[string.sub(name, 6)] = meta[string.sub(name, 6)] or fields[i + 1]
      name = nil
    end
    if name then
      original[#original + 1] = name
      original[#original + 1] = fields[i + 1]
    end
  end
  return meta, original
end

-- A letter that refers to its entry instead of holding a copy.
local function is_reference(meta, original)
  return meta.reason == 'oversized' and #original == 0
end
