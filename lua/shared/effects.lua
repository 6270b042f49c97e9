-- effects.lua: apply a list of effects, all or none.
--
-- An effect is { command, key, arguments }. Lua does not roll back, so: types are checked first, counting what earlier
-- effects make of a key, and permissions; then the increments run, the only ones that can still fail, and are undone by
-- their exact inverse if one does; then the rest.

local MAKES = { HSET = 'hash', HINCRBY = 'hash', INCRBY = 'string', SET = 'string', SADD = 'set', SREM = 'set',
  ZADD = 'zset', ZREM = 'zset', RPUSH = 'list', XADD = 'stream' }
local CREATES = { HSET = true, HINCRBY = true, INCRBY = true, SET = true, SADD = true, ZADD = true, RPUSH = true, XADD = true }

local function reason_of(err)
  -- 6.2 to 9 wrap an error of a script's call in different ways; the caller wants the server's words alone.
  local reason = string.gsub(err, '^ERR ', '')
  reason = string.gsub(reason, ' script: %x+, on @user_script:%d+%.?$', '')
  reason = string.gsub(reason, '^.*@user_script: ?%d+: %-?', '')
  return reason
end

-- Why an increment cannot be, in words; but what the server refuses for now (memory is full, no replicas, a failover) is
-- an error table: no fault of the effect, so it must not cost the job an attempt.
local function refusal(err)
  local words = string.lower(err)
  if string.find(words, 'not an integer', 1, true) or string.find(words, 'overflow', 1, true) then return reason_of(err) end
  return redis.error_reply(reason_of(err))
end

-- flat: count, then per effect: command, number of its key, number of arguments, arguments ...
local function read_effects(flat, at, data_keys)
  local effects = {}
  local count = tonumber(flat[at])
  at = at + 1
  for i = 1, count do
    local arguments = {}
    local n = tonumber(flat[at + 2])
    for j = 1, n do arguments[j] = flat[at + 2 + j] end
    effects[i] = { command = flat[at], key = data_keys[tonumber(flat[at + 1])], arguments = arguments }
    at = at + 3 + n
  end
  return effects
end

local function run(effect)
  return redis.pcall(effect.command, effect.key, unpack(effect.arguments))
end

local function refused_or_denied(err)
  local words = string.lower(err)
  -- Not "can't" alone: a replica says that it "can't write", which passes.
  for _, sign in ipairs({ 'noperm', 'acl failure', "can't run this command", "can't access" }) do
    if string.find(words, sign, 1, true) then return reason_of(err) end
  end
  return refusal(err)
end

-- What the user may not do. Servers before 7.0 cannot be asked, so there each command is tried on a key of no meaning.
local function denied(effects, probe)
  local tried = {}
  for i, effect in ipairs(effects) do
    if redis.acl_check_cmd then
      if not redis.acl_check_cmd(effect.command, effect.key, unpack(effect.arguments)) then
        return i, 'the user may not run ' .. effect.command .. ' on this key'
      end
    elseif not tried[effect.command] then
      tried[effect.command] = true
      local reply = redis.pcall(effect.command, probe, unpack(effect.arguments))
      if type(reply) == 'table' and reply.err then return i, refused_or_denied(reply.err) end
      redis.call('UNLINK', probe)
    end
  end
end

-- Why a stream takes no more entries, or nil. One whose last ID has the highest time there is may not.
local function why_full(key)
  local info = redis.pcall('XINFO', 'STREAM', key)
  local why = info.err and refused_or_denied(info.err)
  if why then return type(why) == 'string' and 'XINFO STREAM, which is asked before: ' .. why or why end
  for i = 1, #info, 2 do
    local last = info[i] == 'last-generated-id' and info[i + 1] or ''
    if string.sub(last, 1, 20) == '18446744073709551615' then return 'the stream has used up its IDs' end
  end
end

local function check_effects(effects, probe)
  local kinds = {}
  for i, effect in ipairs(effects) do
    local key, command = effect.key, effect.command
    local kind = kinds[key] or redis.call('TYPE', key).ok
    local wanted = MAKES[command]
    if command == 'DEL' then
      kind = 'none'
    elseif command == 'SET' then
      kind = 'string'
    elseif wanted then
      if kind ~= 'none' and kind ~= wanted then
        return i, 'WRONGTYPE: it holds a ' .. kind .. ', ' .. command .. ' needs a ' .. wanted
      end
      local full = command == 'XADD' and kind == 'stream' and not kinds[key] and why_full(key)
      if full then return i, full end
      if CREATES[command] then kind = wanted end
    end
    kinds[key] = kind
  end
  return denied(effects, probe)
end

local function undo(step)
  local effect = step.effect
  if step.absent then
    if effect.command == 'INCRBY' then redis.call('DEL', effect.key)
    else redis.call('HDEL', effect.key, effect.arguments[1]) end
  else
    local amount = effect.arguments[#effect.arguments]
    local inverse = '-' .. amount
    if string.sub(amount, 1, 1) == '-' then inverse = string.sub(amount, 2) end
    if amount == '0' then return end
    if effect.command == 'INCRBY' then redis.call('INCRBY', effect.key, inverse)
    else redis.call('HINCRBY', effect.key, effect.arguments[1], inverse) end
  end
end

-- Nothing on success; else the number of the effect that cannot be applied, and why: words, or an error to answer as it is.
local function apply_effects(effects, probe)
  local bad, why = check_effects(effects, probe)
  if bad then return bad, why end
  local steps = {}
  for i, effect in ipairs(effects) do
    local hash = effect.command == 'HINCRBY'
    if hash or effect.command == 'INCRBY' then
      local absent
      if hash then absent = redis.call('HEXISTS', effect.key, effect.arguments[1]) == 0
      else absent = redis.call('EXISTS', effect.key) == 0 end
      local reply = run(effect)
      if type(reply) == 'table' and reply.err then
        for j = #steps, 1, -1 do undo(steps[j]) end
        return i, refusal(reply.err)
      end
      steps[#steps + 1] = { effect = effect, absent = absent }
    end
  end
  for i, effect in ipairs(effects) do
    if effect.command ~= 'HINCRBY' and effect.command ~= 'INCRBY' then
      local reply = run(effect)
      if type(reply) == 'table' and reply.err then
        -- Only a refusal of the very first write gets here (memory is full), so undoing the increments undoes all.
        for j = #steps, 1, -1 do undo(steps[j]) end
        return i, refusal(reply.err)
      end
    end
  end
end
