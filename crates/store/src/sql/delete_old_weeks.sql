-- delete_old_weeks: deletes the counts of weeks that ended a year ago.
delete from oncegate.weekly_counts where week < :now - 32054400000
