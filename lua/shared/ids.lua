-- ids.lua: the order of entry IDs.

-- IDs are two 64-bit numbers, which Lua's doubles cannot hold: compare as text, longer first.
local function number_after(a, b)
  if #a ~= #b then return #a > #b end
  return a > b
end

local function id_after(a, b)
  local dash = string.find(a, '-', 1, true)
  if #a == #b and string.find(b, '-', 1, true) == dash then return a > b end -- nearly always, and several times cheaper
  local a_ms, a_seq = string.match(a, '^(%d+)-(%d+)$')
  local b_ms, b_seq = string.match(b, '^(%d+)-(%d+)$')
  if a_ms ~= b_ms then return number_after(a_ms, b_ms) end
  return number_after(a_seq, b_seq)
end

-- Whether a text is an entry ID as the server writes it: for others its commands raise an error.
local function is_id(text)
  local ms, seq = string.match(text, '^(%d+)-(%d+)$')
  local function is_number(part)
    return (part == '0' or string.sub(part, 1, 1) ~= '0') and not number_after(part, '18446744073709551615')
  end
  return ms ~= nil and is_number(ms) and is_number(seq)
end
