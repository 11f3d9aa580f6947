-- settle: ends an attempt. A completed key stays as it is.
update oncegate.keys as k
   set
     {settled}
 where
   {may_settle}
returning expires_at
