-- CHECK: the count of the open window and the time at which it expires, without
-- counting a call. After the same pattern as rate.lua.
local rate_limit_key = KEYS[1]
local current_time = tonumber(ARGV[1])

local expires_at_key = rate_limit_key .. ":exp"
local tries = tonumber(redis.call("get", rate_limit_key))
local expires_at = tonumber(redis.call("get", expires_at_key))

if not tries or not expires_at or expires_at < current_time then
  return { 0, 0 }
end

return { tries, expires_at }
