-- find_parts: the bits of a record's parts, for a request that was refused because of another fingerprint. A record that
-- came since is another one.
select k.parts
  from oncegate.keys as k
 where k.id = :id
   and k.fingerprint = :fingerprint
   and k.parts is not null
