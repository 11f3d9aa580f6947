-- forget: ends an attempt that the service has refused to its caller, and deletes the key. What is left, settle ends.
delete from oncegate.keys as k
 where
   {may_forget}
