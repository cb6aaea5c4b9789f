use crate::Result;
use candle_core::Tensor;

/// Hidden states by row number, for rows that are still to be fed somewhere.
#[derive(Debug, Default)]
pub(super) struct Rows {
    base: usize,
    data: Option<Tensor>,
}

impl Rows {
    /// One past the newest row.
    pub fn end(&self) -> usize {
        self.base + self.data.as_ref().map_or(0, |d| d.dims()[0])
    }

    /// `rows` [n, hidden] become rows `first..`; whatever stood there or beyond is replaced.
    pub fn put(&mut self, first: usize, rows: &Tensor) -> Result<()> {
        self.truncate(first)?;
        if self.data.is_none() {
            self.base = first;
        }
        debug_assert!(self.end() == first, "rows {first} would leave a hole after {}", self.end());
        self.data = Some(match &self.data {
            Some(data) => Tensor::cat(&[data, rows], 0)?,
            None => rows.clone(),
        });
        Ok(())
    }

    /// Rows `from..to`, which must be there.
    pub fn get(&self, from: usize, to: usize) -> Result<Tensor> {
        match &self.data {
            Some(data) if from >= self.base && to <= self.end() && from < to => {
                Ok(data.narrow(0, from - self.base, to - from)?)
            }
            _ => {
                Err(candle_core::Error::Msg(format!("hidden rows {from}..{to} are not kept"))
                    .into())
            }
        }
    }

    pub fn truncate(&mut self, end: usize) -> Result<()> {
        if end >= self.end() {
            return Ok(());
        }
        self.data = match self.data.take() {
            Some(data) if end > self.base => Some(data.narrow(0, 0, end - self.base)?),
            _ => None,
        };
        Ok(())
    }

    pub fn drop_before(&mut self, first: usize) -> Result<()> {
        if let Some(data) = self.data.take()
            && first < self.base + data.dims()[0]
        {
            let gone = first.saturating_sub(self.base);
            // A narrowed tensor would keep the memory of all rows before it.
            self.data = Some(if gone > 0 {
                data.narrow(0, gone, data.dims()[0] - gone)?.force_contiguous()?
            } else {
                data
            });
            self.base += gone;
        }
        Ok(())
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}
