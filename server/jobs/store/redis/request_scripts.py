"""What changes requests in Redis: Lua scripts, each of which is carried out whole.

Keys, all with one prefix: `request:ID` is a hash; `queue:PRIORITY` a stream with the group "servers", whose pending
entries are claims; `waiting:PRIORITY`, `running` and `outbox` are sorted sets, once for all and once for each owner;
`expiring` and `purging` are sorted by time; `keys` has the idempotency keys, `usage` what is held.

Every script gets the prefix, and the arguments: now, seconds of the results' TTL, the errors of an expired request and
its size, then its own. Redis without memory refuses a script at its first write alone, so it is never left half done.
"""

PRELUDE = """
local P, now, ttl = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local EXPIRY_ERRORS, EXPIRY_SIZE = ARGV[3], ARGV[4]
local call = redis.call
local function text(number) return string.format('%.17g', number) end
local function row(id) return P .. 'request:' .. id end
local function into(name, owner, id, score)
  call('ZADD', P .. name, text(score), id)
  call('ZADD', P .. name .. ':' .. owner, text(score), id)
end
local function out_of(name, owner, id)
  call('ZREM', P .. name, id)
  call('ZREM', P .. name .. ':' .. owner, id)
end
local function use(held, open, count)
  call('HINCRBY', P .. 'usage', 'held', held)
  call('HINCRBY', P .. 'usage', 'open', open)
  call('HINCRBY', P .. 'usage', 'count', count)
end
local function usage()
  local values = call('HMGET', P .. 'usage', 'held', 'open', 'count')
  return tonumber(values[1] or 0), tonumber(values[2] or 0), tonumber(values[3] or 0)
end
local function finish(id, status, errors, size, result)
  local r = call('HMGET', row(id), 'owner', 'priority', 'entry', 'size', 'endpoint')
  local owner, priority, webhook = r[1], r[2], 'NO_WEBHOOK_PROVIDED'
  if r[5] ~= '' then webhook = status == 'CANCELED' and 'CANCELED' or 'PENDING' end
  call('HSET', row(id), 'status', status, 'webhook_status', webhook, 'errors', errors, 'size', size,
       'status_at', text(now), 'attempt_wait', '0', unpack(result))
  call('HDEL', row(id), 'body')
  out_of('waiting:' .. priority, owner, id)
  out_of('running', owner, id)
  call('ZREM', P .. 'expiring', id)
  call('XACK', P .. 'queue:' .. priority, 'servers', r[3])
  call('XDEL', P .. 'queue:' .. priority, r[3])
  if webhook == 'PENDING' then into('outbox', owner, id, now)
  else call('ZADD', P .. 'purging', text(now + ttl), id) end
  use(size - r[4], -r[4], -1)
end
local function expire()
  local ids = call('ZRANGEBYSCORE', P .. 'expiring', '-inf', text(now), 'LIMIT', 0, 1000)
  for _, id in ipairs(ids) do finish(id, 'EXPIRED', EXPIRY_ERRORS, EXPIRY_SIZE, {}) end
  return #ids
end
local function queue_of(priority)
  local queue = P .. 'queue:' .. priority
  if call('EXISTS', queue) == 0 then  -- Redis has been emptied since this server opened it
    call('XGROUP', 'CREATE', queue, 'servers', '0', 'MKSTREAM')
  end
  return queue
end
local function make_claimable(priority, entry)
  call('XCLAIM', P .. 'queue:' .. priority, 'servers', 'one', 0, entry, 'IDLE', '100000000000', 'JUSTID')
end
"""

# Its own arguments: id, owner, key ("" = none, else "k" and the key), digest, priority, size, seconds that it may wait,
# quota, most that wait, then the fields of the hash.
ADD = """
local id, owner, key, digest, priority, size, wait, quota, most = unpack(ARGV, 5, 13)
size, quota = tonumber(size), tonumber(quota)
local keyed = #owner .. ':' .. owner .. key
if key ~= '' then
  local kept = call('HGET', P .. 'keys', keyed)
  if kept then
    if call('HGET', row(kept), 'digest') ~= digest then return {'conflict'} end
    return {'kept', kept}
  end
end
local held, open, count = usage()
if count >= tonumber(most) or open + size > math.floor(quota / 2) or held + size > quota then
  return {'full', held, open, count}
end
local entry = call('XADD', queue_of(priority), '*', 'id', id)
call('HSET', row(id), 'owner', owner, 'priority', priority, 'digest', digest, 'size', size, 'entry', entry,
     'keyed', key ~= '' and keyed or '', 'status', 'QUEUED', 'status_at', text(now), 'created_at', text(now),
     'wait', wait, 'expires_at', text(now + wait), 'claims', 0, 'attempts', 0, 'errors', '[]', unpack(ARGV, 14))
if key ~= '' then call('HSET', P .. 'keys', keyed, id) end
into('waiting:' .. priority, owner, id, now)
call('ZADD', P .. 'expiring', text(now + wait), id)
use(size, size, 1)
return {'kept', id}
"""

# limit, quota, lease in milliseconds, who claims, most bytes, number of priorities
CLAIM = """
local limit, quota, lease = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local holder, most_bytes, priorities = ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10])
expire()
if (usage()) >= quota then return {} end
local claimed, total = {}, 0
local function take(priority, entry, id)
  local r = call('HMGET', row(id), 'expires_at', 'size', 'owner')
  if tonumber(r[1]) <= now then
    finish(id, 'EXPIRED', EXPIRY_ERRORS, EXPIRY_SIZE, {})
    return true
  end
  total = total + r[2]
  if #claimed > 0 and total > most_bytes then
    make_claimable(priority, entry)
    return false
  end
  call('HSET', row(id), 'status', 'IN_PROGRESS', 'status_at', text(now), 'holder', holder)
  call('HINCRBY', row(id), 'claims', 1)
  out_of('waiting:' .. priority, r[3], id)
  call('ZREM', P .. 'expiring', id)
  into('running', r[3], id, now)
  local fields = {'owner', 'route', 'headers', 'body', 'priority', 'retry', 'created_at', 'claims'}
  claimed[#claimed + 1] = {id, unpack(call('HMGET', row(id), unpack(fields)))}
  return true
end
for priority = 0, priorities - 1 do
  local queue, cursor = queue_of(priority), '0-0'
  repeat
    if #claimed >= limit then return claimed end
    local found = call('XAUTOCLAIM', queue, 'servers', 'one', lease, cursor, 'COUNT', 1)
    cursor = found[1]
    for _, entry in ipairs(found[2]) do
      if not take(priority, entry[1], entry[2][2]) then return claimed end
    end
  until cursor == '0-0'
  while #claimed < limit do
    local found = call('XREADGROUP', 'GROUP', 'servers', 'one', 'COUNT', 1, 'STREAMS', queue, '>')
    if not found then break end
    local entry = found[1][2][1]
    if not take(priority, entry[1], entry[2][2]) then return claimed end
  end
end
return claimed
"""

# who renews, then ids
RENEW = """
for i = 6, #ARGV do
  local r = call('HMGET', row(ARGV[i]), 'status', 'holder', 'priority', 'entry')
  if r[1] == 'IN_PROGRESS' and r[2] == ARGV[5] then
    call('XCLAIM', P .. 'queue:' .. r[3], 'servers', 'one', 0, r[4], 'IDLE', 0, 'JUSTID')
  end
end
"""

# who releases, then ids
RELEASE = """
for i = 6, #ARGV do
  local id = ARGV[i]
  local r = call('HMGET', row(id), 'status', 'holder', 'priority', 'entry', 'owner', 'expires_at', 'created_at')
  if r[1] == 'IN_PROGRESS' and r[2] == ARGV[5] then
    call('HSET', row(id), 'status', 'QUEUED', 'status_at', text(now), 'holder', '')
    out_of('running', r[5], id)
    into('waiting:' .. r[3], r[5], id, tonumber(r[7]))
    call('ZADD', P .. 'expiring', r[6], id)
    make_claimable(r[3], r[4])
  end
end
"""

# id, status, errors, size, then the fields of the result
FINISH = """
local status = call('HGET', row(ARGV[5]), 'status')
if status ~= 'QUEUED' and status ~= 'IN_PROGRESS' then return 0 end
finish(ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8]), {unpack(ARGV, 9)})
return 1
"""

# owner, id, size
CANCEL = """
local r = call('HMGET', row(ARGV[6]), 'owner', 'status')
if r[1] ~= ARGV[5] or r[2] ~= 'QUEUED' then return 0 end
finish(ARGV[6], 'CANCELED', '[]', tonumber(ARGV[7]), {})
return 1
"""

EXPIRE = "return expire()"

PURGE = """
local ids = call('ZRANGEBYSCORE', P .. 'purging', '-inf', text(now), 'LIMIT', 0, 1000)
for _, id in ipairs(ids) do
  local r = call('HMGET', row(id), 'keyed', 'size')
  call('DEL', row(id))
  call('ZREM', P .. 'purging', id)
  if r[1] ~= '' then call('HDEL', P .. 'keys', r[1]) end
  use(-r[2], 0, 0)
end
return #ids
"""

# limit, lease in seconds, most bytes
DUE = """
local lease, most_bytes, total, found = tonumber(ARGV[6]), tonumber(ARGV[7]), 0, {}
for _, id in ipairs(call('ZRANGEBYSCORE', P .. 'outbox', '-inf', text(now), 'LIMIT', 0, ARGV[5])) do
  total = total + call('HGET', row(id), 'size')
  if #found > 0 and total > most_bytes then break end
  call('HINCRBY', row(id), 'attempts', 1)
  call('HSET', row(id), 'attempt_wait', text(lease))
  local fields = {'owner', 'endpoint', 'status', 'status_at', 'errors', 'attempts',
                  'status_code', 'result_headers', 'content_type', 'result'}
  local r = call('HMGET', row(id), unpack(fields))
  into('outbox', r[1], id, now + lease)
  found[#found + 1] = {id, unpack(r)}
end
return found
"""

# id, webhook status
SETTLE = """
local id = ARGV[5]
if not call('ZSCORE', P .. 'outbox', id) then return end
local r = call('HMGET', row(id), 'owner', 'status', 'status_at')
call('HSET', row(id), 'webhook_status', ARGV[6])
if ARGV[6] == 'FAILED' and r[2] == 'SUCCEEDED' then call('HSET', row(id), 'status', 'WEBHOOK_FAILED') end
out_of('outbox', r[1], id)
call('ZADD', P .. 'purging', text(math.max(r[3] + ttl, now)), id)
"""

# id, when
POSTPONE = """
local id, at = ARGV[5], tonumber(ARGV[6])
if not call('ZSCORE', P .. 'outbox', id) then return end
call('HSET', row(id), 'attempt_wait', text(math.max(0, at - now)))
into('outbox', call('HGET', row(id), 'owner'), id, at)
"""

# a sorted set, then ids: no wait may be longer than its whole length from now
SHORTEN = """
local name = ARGV[5]
local field = ({expiring = 'wait', running = 'wait', outbox = 'attempt_wait'})[name]
for i = 6, #ARGV do
  local id = ARGV[i]
  local latest = now + (field and call('HGET', row(id), field) or ttl)
  local at = name == 'running' and call('HGET', row(id), 'expires_at') or call('ZSCORE', P .. name, id)
  if at and tonumber(at) > latest then
    if field == 'wait' then call('HSET', row(id), 'expires_at', text(latest)) end
    if name == 'outbox' then into(name, call('HGET', row(id), 'owner'), id, latest)
    elseif name ~= 'running' then call('ZADD', P .. name, text(latest), id) end
  end
end
"""
