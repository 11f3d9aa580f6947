-- restore: writes the row of an ended attempt that the file has lost.
{restored}
returning expires_at
