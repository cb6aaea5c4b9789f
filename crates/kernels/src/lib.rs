//! Ops candle lacks.
