"""What changes documents in Redis. Arguments as those of requests' scripts.

`document:KIND:ID` is a hash; `owned:KIND:OWNER` and `stated:KIND:STATE` are sorted sets in the order of arrival.
"""

# quota and share, kind, id, owner, state, size, what has to find room, then the fields of the hash
PUT = """
local limits, kind, id, owner, state, size = ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9], tonumber(ARGV[10])
local quota, its_quota = bounds(limits, owner)
local needs = tonumber(ARGV[11])
local key = P .. 'document:' .. kind .. ':' .. id
if call('EXISTS', key) == 1 then return {'taken'} end
local held, _, _, its = usage(owner)
if needs > 0 and (held + needs > quota or its + needs > its_quota) then return {'full', held, its} end
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
local quota, its_quota = bounds(limits, owner)
local key = P .. 'document:' .. kind .. ':' .. id
local r = call('HMGET', key, 'owner', 'version', 'state', 'size', 'held_bytes', 'seq')
if r[1] ~= owner or r[2] ~= ARGV[11] then return {'changed'} end
local held, _, _, its = usage(owner)
local growth = size - r[4]
if tonumber(ARGV[13]) > tonumber(r[5]) and (held + growth > quota or its + growth > its_quota) then
  return {'full', growth, held, its}
end
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
