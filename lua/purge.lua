-- purge.lua: remove dead letters for good.
--
-- KEYS[1]  stream  T:stream  stream
-- KEYS[2]  dead    T:dead    stream of dead letters
-- KEYS[3]  meta    T:meta    hash; kept:<entry ID> counts the letters that refer to an entry
-- ARGV[1..]  entry IDs of letters
--
-- Returns  per letter  1  removed; with it its entry, if the letter was the last one to refer to it and no group needs it
--                      0  there is no such letter
--          error WRONGTYPE  a key holds something else; nothing was written
--
-- Atomic because an entry that is kept for a letter must go with the last one that refers to it. Redis >= 6.2.
-- Uses: ids, groups, types, letters, kept

local stream = KEYS[1]
local dead = KEYS[2]
local meta = KEYS[3]

local wrong = check_stream(stream) or check_stream(dead) or check_hash(meta)
if wrong then return wrong end

local groups
local codes = {}
for i = 1, #ARGV do
  local letter = first_entry(dead, ARGV[i], ARGV[i])
  codes[i] = letter and 1 or 0
  if letter then
    local about, original = read_letter(letter[2])
    redis.call('XDEL', dead, ARGV[i])
    if is_reference(about, original) and is_id(about.source or '') and unkeep_entry(meta, about.source) then
      groups = groups or group_rows(stream)
      if not entry_state(stream, about.source, groups) then redis.call('XDEL', stream, about.source) end
    end
  end
end
return codes
