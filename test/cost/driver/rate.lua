-- RATE: count a call, and return the count and the time at which it expires.
-- After the pattern of "How we scaled the GitHub API with a sharded, replicated
-- rate limiter in Redis" (GitHub, 2021). Reads and writes {k} and {k}:exp only.
local rate_limit_key = KEYS[1]
local increment_amount = tonumber(ARGV[1])
local next_expires_at = tonumber(ARGV[2])
local current_time = tonumber(ARGV[3])

local expires_at_key = rate_limit_key .. ":exp"
local expires_at = tonumber(redis.call("get", expires_at_key))

if not expires_at or expires_at < current_time then
  -- A new window, or one that is over and not yet cleaned up.
  redis.call("set", rate_limit_key, 0)
  redis.call("set", expires_at_key, next_expires_at)
  redis.call("expireat", rate_limit_key, next_expires_at + 1)
  redis.call("expireat", expires_at_key, next_expires_at + 1)
  expires_at = next_expires_at
end

local current = redis.call("incrby", rate_limit_key, increment_amount)

return { current, expires_at }
