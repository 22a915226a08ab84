"""The scripts that change requests and documents in Redis: they are Lua, each of which is carried out whole, and the
connections that carry them there.

Keys, all with one prefix: `request:ID` is a hash; `queue:PRIORITY` a stream with the group "servers", whose pending
entries are claims; `waiting:PRIORITY`, `running` and `outbox` are sorted sets, once for all and once for each owner;
`owners:waiting`, `owners:running` and `owners:outbox` are the owners of theirs, and sometimes one that has no more;
`expiring` and `purging` are sorted by time; `keys` has the idempotency keys, `usage` what is held. `document:KIND:ID`
is a hash; `owned:KIND:OWNER` and `stated:KIND:STATE` are sorted sets in the order of arrival.

Every script gets the prefix, a key that names the folder of files, and the arguments: now, seconds of the results' TTL,
the errors of an expired request and its size, then its own. Redis without memory refuses a script at its first write
alone, so it is never left half done.
"""

from collections.abc import Callable
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import OutOfMemoryError, RedisError, ResponseError

from server.features.jobs.store.quotas import EXPIRY, size_of_end
from server.features.jobs.store.store import (
    BACKWARDS_SECONDS,
    StoreFull,
    StoreLimits,
    StoreUnavailable,
    StoreUnusable,
    json_text,
)

MAX_CONNECTIONS = 32
PLACE_SECONDS = 10.0  # to wait for one of them
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0
IDS_AT_ONCE = 500
TIMED = ("expiring", "running", "purging", "outbox")
PRELUDE = """
local P, now, ttl = KEYS[1], tonumber(ARGV[1]), tonumber(ARGV[2])
local EXPIRY_ERRORS, EXPIRY_SIZE = ARGV[3], ARGV[4]
local call = redis.call
local FOLDER = string.sub(KEYS[2], #P + #'folder:' + 1)
if FOLDER ~= '' then
  local kept = call('GET', P .. 'folder')
  if not kept then  -- Redis has been emptied since this server opened it
    call('SET', P .. 'folder', FOLDER)
    call('SET', P .. 'version', 2, 'NX')
    call('INCR', P .. 'emptied')
  elseif kept ~= FOLDER then
    return redis.error_reply('ANOTHERFOLDER')
  end
end
local function text(number) return string.format('%.17g', number) end
local function row(id) return P .. 'request:' .. id end
local function into(name, owner, id, score)
  call('ZADD', P .. name, text(score), id)
  call('ZADD', P .. name .. ':' .. owner, text(score), id)
  call('SADD', P .. 'owners:' .. string.match(name, '%a+'), owner)
end
local function out_of(name, owner, id)
  call('ZREM', P .. name, id)
  call('ZREM', P .. name .. ':' .. owner, id)
  if name == 'running' and call('EXISTS', P .. 'running:' .. owner) == 0 then
    call('SREM', P .. 'owners:running', owner)
  end
end
local function use(owner, held, open, count)
  for _, whose in ipairs({'', ':' .. owner}) do
    call('HINCRBY', P .. 'usage', 'held' .. whose, held)
    call('HINCRBY', P .. 'usage', 'open' .. whose, open)
    call('HINCRBY', P .. 'usage', 'count' .. whose, count)
  end
end
local function usage(owner)  -- held, open, count: of all, then the owner's
  local own = ':' .. owner
  local values = call('HMGET', P .. 'usage', 'held', 'open', 'count', 'held' .. own, 'open' .. own, 'count' .. own)
  for i = 1, 6 do values[i] = tonumber(values[i] or 0) end
  return unpack(values)
end
local function bounds(limits, owner)  -- the quota, the owner's part of it, and its share; `limits` has quota and share
  local quota, share = string.match(limits, '(%d+) (.+)')
  share = owner == '' and 1 or tonumber(share)
  return tonumber(quota), math.floor(quota * share), share
end
local function has_room(limits, owner, growth)  -- and how much is held, of all and of the owner
  local quota, its_quota = bounds(limits, owner)
  local held, _, _, its = usage(owner)
  return held + growth <= quota and its + growth <= its_quota, held, its
end
local function usual_result(owner, quota)
  return tonumber(call('HGET', P .. 'usage', 'usual:' .. owner) or math.min(1048576, math.floor(quota / 16)))
end
local function reserved(limits)  -- for the results of all that run
  local bytes = 0
  for _, owner in ipairs(call('SMEMBERS', P .. 'owners:running')) do
    local count = call('ZCARD', P .. 'running:' .. owner)
    local _, its_quota = bounds(limits, owner)
    bytes = bytes + count * usual_result(owner, its_quota)
  end
  return bytes
end
local function has_room_for_result(limits, owner)
  local quota, its_quota = bounds(limits, owner)
  local held, _, _, its = usage(owner)
  local usual = usual_result(owner, its_quota)
  return held + reserved(limits) + usual <= quota
     and its + (call('ZCARD', P .. 'running:' .. owner) + 1) * usual <= its_quota
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
  use(owner, size - r[4], -r[4], -1)
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
local function wait_again(id)
  local r = call('HMGET', row(id), 'status', 'priority', 'owner', 'expires_at', 'created_at')
  if r[1] ~= 'IN_PROGRESS' then return end
  call('HSET', row(id), 'status', 'QUEUED', 'status_at', text(now), 'holder', '')
  out_of('running', r[3], id)
  into('waiting:' .. r[2], r[3], id, tonumber(r[5]))
  call('ZADD', P .. 'expiring', r[4], id)
end
local function oldest(name)  -- of those that came at the same time by the clock, the first in its stream
  local found = call('ZRANGE', P .. name, 0, 0, 'WITHSCORES')
  local first, first_ms, first_seq
  for _, id in ipairs(found[1] and call('ZRANGEBYSCORE', P .. name, found[2], found[2], 'LIMIT', 0, 100) or {}) do
    local ms, seq = string.match(call('HGET', row(id), 'entry'), '(%d+)-(%d+)')
    ms, seq = tonumber(ms), tonumber(seq)
    if not first or ms < first_ms or (ms == first_ms and seq < first_seq) then
      first, first_ms, first_seq = id, ms, seq
    end
  end
  return first, tonumber(found[2])
end
-- As store.py says. ARGV has from `at` on: how many owners have something, each with how much; then
-- owners with how much more they may get. `first` gives when an owner's first came, and its id; `take` if to go on.
local function take_in_turn(owners, at, first, take)
  local count, held, place, left, line = tonumber(ARGV[at]), {}, {}, {}, {}
  for i = 1, count do
    held[ARGV[at + 2 * i - 1]], place[ARGV[at + 2 * i - 1]] = tonumber(ARGV[at + 2 * i]), i
  end
  for i = at + 2 * count + 1, #ARGV, 2 do left[ARGV[i]] = tonumber(ARGV[i + 1]) end
  local function look(one)
    one.since, one.id = first(one.owner)
    if not one.since then call('SREM', P .. owners, one.owner) end
  end
  for _, owner in ipairs(call('SMEMBERS', P .. owners)) do
    local one = {owner = owner, held = held[owner] or 0, place = place[owner] or 0, left = left[owner] or math.huge}
    look(one)
    line[#line + 1] = one
  end
  while true do
    local best
    for _, one in ipairs(line) do
      if one.id and one.left > 0 and (not best or one.held < best.held or (one.held == best.held and
          (one.place < best.place or (one.place == best.place and one.since < best.since)))) then best = one end
    end
    local goes_on = best and take(best.id)
    if not best then return end
    count = count + 1
    best.held, best.place, best.left = best.held + 1, count, best.left - 1
    look(best)
    if not goes_on then return end
  end
end
"""

# Its own arguments: id, owner, key ("" = none, else "k" and the key), digest, priority, size, seconds that it may wait,
# quota and share, most that wait, then the fields of the hash.
ADD = """
local id, owner, key, digest, priority, size, wait, limits, most = unpack(ARGV, 5, 13)
local quota, its_quota, share = bounds(limits, owner)
size, most = tonumber(size), tonumber(most)
local keyed = #owner .. ':' .. owner .. key
if key ~= '' then
  local kept = call('HGET', P .. 'keys', keyed)
  if kept then
    if call('HGET', row(kept), 'digest') ~= digest then return {'conflict'} end
    return {'kept', kept}
  end
end
local held, open, count, its_held, its_open, its_count = usage(owner)
if count >= most or open + size > math.floor(quota / 2) or held + size > quota or its_count >= most * share
   or its_open + size > math.floor(its_quota / 2) or its_held + size > its_quota then
  return {'full', held, open, count, its_held, its_open, its_count}
end
local entry = call('XADD', queue_of(priority), '*', 'id', id)
call('HSET', row(id), 'owner', owner, 'priority', priority, 'digest', digest, 'size', size, 'entry', entry,
     'keyed', key ~= '' and keyed or '', 'status', 'QUEUED', 'status_at', text(now), 'created_at', text(now),
     'wait', wait, 'expires_at', text(now + wait), 'claims', 0, 'attempts', 0, 'errors', '[]', unpack(ARGV, 14))
if key ~= '' then call('HSET', P .. 'keys', keyed, id) end
into('waiting:' .. priority, owner, id, now)
call('ZADD', P .. 'expiring', text(now + wait), id)
use(owner, size, size, 1)
return {'kept', id}
"""

# limit, quota and share, lease in milliseconds, who claims, most bytes, number of priorities, then the turns
CLAIM = """
local limit, limits, lease = tonumber(ARGV[5]), ARGV[6], ARGV[7]
local holder, most_bytes, priorities = ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10])
local expired = expire()
for priority = 0, priorities - 1 do  -- what a dead server has claimed waits again
  local queue, cursor = queue_of(priority), '0-0'
  repeat
    local found = call('XAUTOCLAIM', queue, 'servers', 'one', lease, cursor, 'COUNT', 100)
    cursor = found[1]
    for _, entry in ipairs(found[2]) do wait_again(entry[2][2]) end
  until cursor == '0-0'
end
local claimed, total = {}, 0
local function first(owner)
  if not has_room_for_result(limits, owner) then return end
  for priority = 0, priorities - 1 do
    local id, since = oldest('waiting:' .. priority .. ':' .. owner)
    if id then return since, id end
  end
end
local function take(id)
  local r = call('HMGET', row(id), 'expires_at', 'size', 'owner', 'priority', 'entry')
  if tonumber(r[1]) <= now then
    finish(id, 'EXPIRED', EXPIRY_ERRORS, EXPIRY_SIZE, {})
    expired = expired + 1
    return true
  end
  total = total + r[2]
  if #claimed > 0 and total > most_bytes then return false end
  call('HSET', row(id), 'status', 'IN_PROGRESS', 'status_at', text(now), 'holder', holder)
  call('HINCRBY', row(id), 'claims', 1)
  call('XCLAIM', P .. 'queue:' .. r[4], 'servers', 'one', 0, r[5], 'FORCE', 'JUSTID')
  out_of('waiting:' .. r[4], r[3], id)
  call('ZREM', P .. 'expiring', id)
  into('running', r[3], id, now)
  local fields = {'owner', 'route', 'headers', 'body', 'priority', 'retry', 'created_at', 'claims'}
  claimed[#claimed + 1] = {id, unpack(call('HMGET', row(id), unpack(fields)))}
  return #claimed < limit
end
for priority = 0, priorities - 1 do  -- an owner whose requests earlier servers have added
  local id = call('ZRANGE', P .. 'waiting:' .. priority, 0, 0)[1]
  if id then call('SADD', P .. 'owners:waiting', call('HGET', row(id), 'owner')) end
end
take_in_turn('owners:waiting', 11, first, take)
return {expired, claimed}
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
  if call('HGET', row(ARGV[i]), 'holder') == ARGV[5] then wait_again(ARGV[i]) end
end
"""

# id, status, errors, size, quota and share, then the fields of the result
FINISH = """
local r = call('HMGET', row(ARGV[5]), 'status', 'owner', 'size')
if r[1] ~= 'QUEUED' and r[1] ~= 'IN_PROGRESS' then return {'ended'} end
local size, owner = tonumber(ARGV[8]), r[2]
if #ARGV > 9 then
  local _, its_quota = bounds(ARGV[9], owner)
  if size > its_quota then return {'too large'} end
  local usual = math.max(size, math.floor(usual_result(owner, its_quota) / 2))
  call('HSET', P .. 'usage', 'usual:' .. owner, math.min(usual, math.floor(its_quota / 2)))
  local growth = size - r[3]
  local fits, held, its = has_room(ARGV[9], owner, growth)
  if growth > 0 and not fits then return {'full', growth, held, its, owner} end
end
finish(ARGV[5], ARGV[6], ARGV[7], size, {unpack(ARGV, 10)})
return {'kept'}
"""

# owner, id, size
CANCEL = """
local r = call('HMGET', row(ARGV[6]), 'owner', 'status')
if r[1] ~= ARGV[5] or r[2] ~= 'QUEUED' then return 0 end
finish(ARGV[6], 'CANCELED', '[]', tonumber(ARGV[7]), {})
return 1
"""

# owner, id, the first byte of the part and its last, from 1. It only reads, which Redis without memory does too.
RESULT = """
local r = call('HMGET', row(ARGV[6]), 'owner', 'status_code', 'result_headers', 'content_type', 'result')
if r[1] ~= ARGV[5] or not r[5] then return {} end
return {#r[5], r[2], r[3], r[4], string.sub(r[5], ARGV[7], ARGV[8])}
"""

EXPIRE = "return expire()"

PURGE = """
local ids = call('ZRANGEBYSCORE', P .. 'purging', '-inf', text(now), 'LIMIT', 0, 1000)
for _, id in ipairs(ids) do
  local r = call('HMGET', row(id), 'keyed', 'size', 'owner')
  call('DEL', row(id))
  call('ZREM', P .. 'purging', id)
  if r[1] ~= '' then call('HDEL', P .. 'keys', r[1]) end
  use(r[3], -r[2], 0, 0)
end
return #ids
"""

# limit, lease in seconds, most bytes, then the turns
DUE = """
local limit, lease, most_bytes, total, found = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), 0, {}
local first_due = call('ZRANGE', P .. 'outbox', 0, 0)[1]
if first_due then call('SADD', P .. 'owners:outbox', call('HGET', row(first_due), 'owner')) end
local function first(owner)
  local one = call('ZRANGE', P .. 'outbox:' .. owner, 0, 0, 'WITHSCORES')
  if one[1] then return tonumber(one[2]), tonumber(one[2]) <= now and one[1] end
end
local function take(id)
  if #found >= limit then return false end
  total = total + call('HGET', row(id), 'size')
  if #found > 0 and total > most_bytes then return false end
  call('HINCRBY', row(id), 'attempts', 1)
  call('HSET', row(id), 'attempt_wait', text(lease))
  local fields = {'owner', 'endpoint', 'status', 'status_at', 'errors', 'attempts',
                  'status_code', 'result_headers', 'content_type', 'result'}
  local r = call('HMGET', row(id), unpack(fields))
  into('outbox', r[1], id, now + lease)
  found[#found + 1] = {id, unpack(r)}
  return #found < limit
end
take_in_turn('owners:outbox', 8, first, take)
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


# quota and share, kind, id, owner, state, size, what has to find room, then the fields of the hash
PUT = """
local limits, kind, id, owner, state, size = ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9], tonumber(ARGV[10])
local needs = tonumber(ARGV[11])
local key = P .. 'document:' .. kind .. ':' .. id
if call('EXISTS', key) == 1 then return {'taken'} end
local fits, held, its = has_room(limits, owner, needs)
if needs > 0 and not fits then return {'full', held, its} end
local seq = call('INCR', P .. 'documents')
call('HSET', key, 'owner', owner, 'state', state, 'size', size, 'seq', seq, 'version', 1, unpack(ARGV, 12))
call('ZADD', P .. 'owned:' .. kind .. ':' .. owner, seq, id)
call('ZADD', P .. 'stated:' .. kind .. ':' .. state, seq, id)
use(owner, size, 0, 0)
return {'kept'}
"""

# quota and share, kind, id, owner, state, size, version, content, held bytes
REPLACE = """
local limits, kind, id, owner, state, size = ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9], tonumber(ARGV[10])
local key = P .. 'document:' .. kind .. ':' .. id
local r = call('HMGET', key, 'owner', 'version', 'state', 'size', 'held_bytes', 'seq')
if r[1] ~= owner or r[2] ~= ARGV[11] then return {'changed'} end
local growth = size - r[4]
local fits, held, its = has_room(limits, owner, growth)
if tonumber(ARGV[13]) > tonumber(r[5]) and not fits then return {'full', growth, held, its} end
call('HSET', key, 'state', state, 'size', size, 'content', ARGV[12], 'held_bytes', ARGV[13])
call('HINCRBY', key, 'version', 1)
call('ZREM', P .. 'stated:' .. kind .. ':' .. r[3], id)
call('ZADD', P .. 'stated:' .. kind .. ':' .. state, r[6], id)
use(owner, growth, 0, 0)
return {'kept'}
"""

# kind, id, owner
DELETE = """
local kind, id, owner = ARGV[5], ARGV[6], ARGV[7]
local key = P .. 'document:' .. kind .. ':' .. id
local r = call('HMGET', key, 'owner', 'state', 'size')
if r[1] ~= owner then return 0 end
call('DEL', key)
call('ZREM', P .. 'owned:' .. kind .. ':' .. owner, id)
call('ZREM', P .. 'stated:' .. kind .. ':' .. r[2], id)
use(owner, -r[3], 0, 0)
return 1
"""


# Migrates a store of version 1, which did not count by owner. "" is an owner too, so the totals are counted anew.
COUNT = """
if call('GET', P .. 'version') ~= '1' then return end
call('DEL', P .. 'usage')
local function count(name, is_open)
  for _, id in ipairs(call('ZRANGE', P .. name, 0, -1)) do
    local r = call('HMGET', row(id), 'owner', 'size')
    use(r[1], r[2], is_open and r[2] or 0, is_open and 1 or 0)
  end
end
for _, name in ipairs({'expiring', 'running', 'outbox', 'purging'}) do
  count(name, name == 'expiring' or name == 'running')
end
for _, name in ipairs({'file:uploading', 'file:ready', 'batch:open', 'batch:ended'}) do
  for _, id in ipairs(call('ZRANGE', P .. 'stated:' .. name, 0, -1)) do
    local r = call('HMGET', P .. 'document:' .. string.match(name, '%a+') .. ':' .. id, 'owner', 'size')
    use(r[1], r[2], 0, 0)
  end
end
call('SET', P .. 'version', 2)
"""


def client_of(url: str) -> Redis:
    """Connects when it is used. A command whose answer was lost is not sent again. Raises StoreUnusable."""
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=PLACE_SECONDS,
            socket_connect_timeout=CONNECT_SECONDS,
            socket_timeout=ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
        )
    except (ValueError, TypeError):  # its words may repeat the password
        raise StoreUnusable("--jobs-redis: that is not a URL that redis-py knows") from None
    return Redis.from_pool(pool)


def limits_text(limits: StoreLimits) -> str:
    """The quota as scripts take it, and the share of each owner with a name."""
    return f"{limits.quota_bytes} {limits.key_share!r}"


class RedisConnection:
    """Calls raise StoreFull where Redis has no memory left, and StoreUnavailable."""

    def __init__(
        self, client: Redis, limits: StoreLimits, *, prefix: str, clock: Callable[[], float], folder_id: str = ""
    ) -> None:
        """folder_id  of the folder with the files; no other server may use another one with this Redis"""
        self.limits = limits
        self.clock = clock
        self.prefix = prefix
        self._client = client
        self._folder_key = f"{prefix}folder:{folder_id}"
        self._scripts: dict[str, Any] = {}
        self._last_now = float("-inf")
        self._is_closed = False

    async def run(self, script: str, *arguments: bytes | str | float) -> Any:
        """Runs the script and returns what it does; `arguments` are its own."""
        now = self.clock()
        if now < self._last_now - BACKWARDS_SECONDS:
            await self.shorten_waits()
        self._last_now = now
        return await self._run(script, now, *arguments)

    async def read(self, *commands: tuple[Any, ...]) -> list[Any]:
        """The answers to commands sent together; not by MULTI, which Redis refuses when it has no memory left."""

        async def ask() -> Any:
            async with self._client.pipeline(transaction=False) as pipeline:
                for command in commands:
                    pipeline.execute_command(*command)
                return await pipeline.execute()

        answers: list[Any] = await self._guarded(ask())
        return answers

    async def shorten_waits(self) -> None:
        """After the clock went back, no wait is longer than its whole length from now."""
        now = self._last_now = self.clock()
        for name in TIMED:
            cursor = 0
            while True:
                ask = self._client.zscan(self.prefix + name, cursor, count=IDS_AT_ONCE)
                cursor, found = await self._guarded(ask)
                if found:
                    await self._run(SHORTEN, now, name, *(member for member, _ in found))
                if not cursor:
                    break

    async def close(self) -> None:
        self._is_closed = True
        await self._client.aclose()

    async def _run(self, script: str, now: float, *arguments: bytes | str | float) -> Any:
        known = self._scripts.get(script)
        if known is None:
            known = self._scripts[script] = self._client.register_script(PRELUDE + script)
        common = (repr(now), repr(self.limits.result_ttl), json_text(EXPIRY.errors), size_of_end(EXPIRY))
        return await self._guarded(known(keys=[self.prefix, self._folder_key], args=[*common, *arguments]))

    async def _guarded(self, asked: Any) -> Any:
        if self._is_closed:
            asked.close()
            raise StoreUnavailable("the store of jobs is closed")
        try:
            return await asked
        except OutOfMemoryError as error:
            raise StoreFull("Redis has no memory left") from error
        except ResponseError as error:
            if "ANOTHERFOLDER" not in str(error):
                raise StoreUnavailable(f"Redis does not do it: {type(error).__name__}") from error
            message = "servers with another folder of --jobs have taken this Redis since it was emptied"
            raise StoreUnavailable(message) from error
        except (TimeoutError, RedisError, OSError) as error:
            raise StoreUnavailable(f"Redis does not do it: {type(error).__name__}") from error
