-- fits_filter: whether a key fits an operator's filter.
service = :service
and (:state is null or state = :state)
and (:scope_low is null or scope between :scope_low and :scope_high)
and (:route is null or route = :route)
and (:key is null or key = :key)
-- The target, or the path for people.
and (:path is null or substr(path, 1, :path_length) = :path or substr(path, 1, :path_length + 1) = :people_path)
and (:older_than_ms is null or coalesce(settled_at, created_at) <= :now - :older_than_ms)
and created_at >= :created_from
and created_at < :created_until
