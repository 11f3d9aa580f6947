-- file_properties: the size of the file and its journal, for a report.
select c.page_count, s.page_size, f.freelist_count, j.journal_mode
  from pragma_page_count as c, pragma_page_size as s, pragma_freelist_count as f, pragma_journal_mode as j
