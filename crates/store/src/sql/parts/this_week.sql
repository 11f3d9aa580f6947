-- this_week: the Monday, 00:00 UTC, of the week that has begun. 1 January 1970 was a Thursday.
(:now + 259200000) / 604800000 * 604800000 - 259200000
