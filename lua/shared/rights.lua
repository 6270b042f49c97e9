-- rights.lua: is an error's cause that the user may not?

local function is_denied(reply)
  if type(reply) ~= 'table' or not reply.err then return false end
  local words = string.lower(reply.err)
  for _, sign in ipairs({ 'noperm', 'acl failure', "can't run this command", "can't access at least" }) do
    if string.find(words, sign, 1, true) then return true end
  end
  return false
end
