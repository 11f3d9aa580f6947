//! Rows of PostgreSQL.

use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};

use super::failure::{PgFailure, PgResult};
use crate::row::{RowReader, StoredValue};
use oncegate_domain::response::CorruptRow;

impl RowReader for Row {
    fn value(&self, column: &'static str) -> Result<Option<StoredValue<'_>>, CorruptRow> {
        let place = self.columns().iter().position(|known| known.name() == column).ok_or(CorruptRow(column))?;
        fn read<'a, T: FromSql<'a>>(row: &'a Row, place: usize) -> Result<Option<T>, CorruptRow> {
            row.try_get(place).map_err(|_| CorruptRow("a column's type"))
        }
        Ok(match *self.columns()[place].type_() {
            Type::BOOL => read::<bool>(self, place)?.map(|value| StoredValue::Number(value.into())),
            Type::BYTEA => read(self, place)?.map(StoredValue::Bytes),
            Type::INT2 => read::<i16>(self, place)?.map(|value| StoredValue::Number(value.into())),
            Type::INT4 => read::<i32>(self, place)?.map(|value| StoredValue::Number(value.into())),
            Type::INT8 => read(self, place)?.map(StoredValue::Number),
            _ => read(self, place)?.map(StoredValue::Text),
        })
    }
}

/// The row of a call that has changed something.
pub(super) fn changed(mut rows: Vec<Row>) -> Result<Option<Row>, CorruptRow> {
    let is_done = rows.first().map_or(Ok(false), |row| row.read("done"))?;
    Ok(is_done.then(|| rows.swap_remove(0)))
}

pub(super) fn one(rows: &[Row]) -> PgResult<&Row> {
    rows.first().ok_or_else(|| PgFailure::refused("the server returned no row"))
}
