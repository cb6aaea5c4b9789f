//! Runs Metal compute kernels on the CPU. Test use only.
//!
//! ```ignore
//! metal_emu::module!(qmv, msl_register_qmv_fast, msl_register_qmv_checked);   // see metal-emu-build
//! let emu = metal_emu::Emu::new(&[qmv::register]);
//! let x = metal_emu::Buffer::from_slice(&xs);
//! let y = metal_emu::Buffer::zeroed::<f32>(n);
//! emu.launch("my_kernel").buffer(0, &x).out(1, &y).set(2, &(n as u32)).run([n / 8, 1, 1], [64, 1, 1])?;
//! ```

use std::ffi::{CStr, CString, c_char, c_int, c_void};

#[repr(C)]
pub struct RawBuffer {
    _p: [u8; 0],
}

#[repr(C)]
struct RawArg {
    kind: c_int,
    index: c_int,
    buf: *mut RawBuffer,
    offset: usize,
    bytes: *const c_void,
    len: usize,
    writable: c_int,
}

#[repr(C)]
struct RawConst {
    id: u32,
    len: u32,
    data: [u8; 16],
}

#[repr(C)]
struct RawLaunch {
    kernel: *const c_char,
    grid: [u32; 3],
    tg: [u32; 3],
    exact_threads: c_int,
    args: *const RawArg,
    nargs: c_int,
    consts: *const RawConst,
    nconsts: c_int,
    checked: c_int,
    order: c_int,
    allow_exited: c_int,
    threads: c_int,
}

#[repr(C)]
struct RawReport {
    threadgroups: u64,
    lanes: u64,
    collectives: u64,
    barriers: u64,
    read_bytes: [u64; 32],
    write_bytes: [u64; 32],
    tg_mem: u64,
    error: [c_char; 1024],
}

unsafe extern "C" {
    fn msl_buffer_new(len: usize) -> *mut RawBuffer;
    fn msl_buffer_free(b: *mut RawBuffer);
    fn msl_buffer_ptr(b: *mut RawBuffer) -> *mut u8;
    fn msl_buffer_len(b: *mut RawBuffer) -> usize;
    fn msl_has_kernel(name: *const c_char) -> c_int;
    fn msl_dispatch(l: *const RawLaunch, r: *mut RawReport) -> c_int;
}

/// Plain data that may live in a buffer.
///
/// # Safety
/// Every bit pattern must be valid and the type must have no padding.
pub unsafe trait Plain: Copy + 'static {}
macro_rules! plain { ($($t:ty),*) => { $(unsafe impl Plain for $t {})* } }
plain!(u8, i8, u16, i16, u32, i32, u64, i64, f32);
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// Shared memory between host and kernel, like an `MTLBuffer` in shared mode. The byte after its
/// last (rounded up to 16) and the one before its first lie in pages that fault.
pub struct Buffer(*mut RawBuffer);
unsafe impl Send for Buffer {}
unsafe impl Sync for Buffer {}

impl Buffer {
    pub fn bytes(len: usize) -> Self {
        let p = unsafe { msl_buffer_new(len) };
        assert!(!p.is_null(), "out of memory");
        Buffer(p)
    }
    pub fn zeroed<T: Plain>(n: usize) -> Self {
        Self::bytes(n * std::mem::size_of::<T>())
    }
    pub fn from_slice<T: Plain>(s: &[T]) -> Self {
        let b = Self::zeroed::<T>(s.len());
        unsafe {
            std::ptr::copy_nonoverlapping(
                s.as_ptr() as *const u8,
                msl_buffer_ptr(b.0),
                std::mem::size_of_val(s),
            )
        };
        b
    }
    pub fn len(&self) -> usize {
        unsafe { msl_buffer_len(self.0) }
    }
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    pub fn to_vec<T: Plain>(&self) -> Vec<T> {
        let n = self.len() / std::mem::size_of::<T>();
        let mut v = Vec::with_capacity(n);
        unsafe {
            std::ptr::copy_nonoverlapping(msl_buffer_ptr(self.0) as *const T, v.as_mut_ptr(), n);
            v.set_len(n);
        }
        v
    }
}
impl Drop for Buffer {
    fn drop(&mut self) {
        unsafe { msl_buffer_free(self.0) }
    }
}

/// Declares the registration functions that a compiled .metal file exports; the second alone if only that was built.
#[macro_export]
macro_rules! module {
    ($name:ident, $checked:ident) => {
        pub mod $name {
            unsafe extern "C" {
                fn $checked();
            }
            pub fn register() {
                unsafe { $checked() }
            }
        }
    };
    ($name:ident, $fast:ident, $checked:ident) => {
        pub mod $name {
            unsafe extern "C" {
                fn $fast();
                fn $checked();
            }
            pub fn register() {
                unsafe {
                    $fast();
                    $checked();
                }
            }
        }
    };
}

/// What a launch did wrong, in words that name buffer, byte and thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault(pub String);

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fault {}

pub struct Emu {}

impl Emu {
    pub fn new(modules: &[fn()]) -> Self {
        for m in modules {
            m();
        }
        Emu {}
    }
    pub fn has(&self, kernel: &str) -> bool {
        let k = CString::new(kernel).expect("a kernel's name has no NUL");
        unsafe { msl_has_kernel(k.as_ptr()) != 0 }
    }
    pub fn launch(&self, kernel: &str) -> Launch<'_> {
        Launch {
            kernel: CString::new(kernel).expect("a kernel's name has no NUL"),
            args: vec![],
            keep: vec![],
            consts: vec![],
            mode: Mode::Checked,
            backward: false,
            allow_exited: false,
            _l: std::marker::PhantomData,
        }
    }
}

/// Checked: every memory access is watched (bounds, races, uninitialised threadgroup memory).
/// Fast: only guard pages and divergence checks, on this many OS threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Checked,
    Fast(usize),
}

pub struct Launch<'a> {
    kernel: CString,
    args: Vec<RawArg>,
    keep: Vec<Box<[u8]>>,
    consts: Vec<RawConst>,
    mode: Mode,
    backward: bool,
    allow_exited: bool,
    _l: std::marker::PhantomData<&'a Buffer>,
}

#[derive(Clone, Debug, Default)]
pub struct Report {
    pub threadgroups: u64,
    pub lanes: u64,
    pub collectives: u64,
    pub barriers: u64,
    /// Bytes that lanes asked for, by buffer index (checked mode). Divide by the buffer's
    /// size to see how often the kernel reads its weights.
    pub read_bytes: Vec<u64>,
    pub write_bytes: Vec<u64>,
    pub threadgroup_memory: u64,
}

impl<'a> Launch<'a> {
    fn push(
        mut self,
        kind: c_int,
        index: u32,
        buf: *mut RawBuffer,
        offset: usize,
        writable: bool,
    ) -> Self {
        self.args.push(RawArg {
            kind,
            index: index as c_int,
            buf,
            offset,
            bytes: std::ptr::null(),
            len: 0,
            writable: writable as c_int,
        });
        self
    }
    /// A buffer the kernel only reads: a write is an error in checked mode.
    pub fn buffer(self, index: u32, b: &'a Buffer) -> Self {
        self.push(1, index, b.0, 0, false)
    }
    pub fn buffer_at(self, index: u32, b: &'a Buffer, offset: usize) -> Self {
        self.push(1, index, b.0, offset, false)
    }
    /// A buffer the kernel may write.
    pub fn out(self, index: u32, b: &'a Buffer) -> Self {
        self.push(1, index, b.0, 0, true)
    }
    pub fn out_at(self, index: u32, b: &'a Buffer, offset: usize) -> Self {
        self.push(1, index, b.0, offset, true)
    }
    /// Small constant data, like `setBytes`.
    pub fn set<T: Plain>(self, index: u32, v: &T) -> Self {
        let n = std::mem::size_of::<T>();
        let bytes = unsafe { std::slice::from_raw_parts(v as *const T as *const u8, n) };
        self.set_bytes(index, bytes)
    }
    pub fn set_bytes(mut self, index: u32, bytes: &[u8]) -> Self {
        let (n, b) = (bytes.len(), bytes.to_vec().into_boxed_slice());
        self.args.push(RawArg {
            kind: 2,
            index: index as c_int,
            buf: std::ptr::null_mut(),
            offset: 0,
            bytes: b.as_ptr() as *const c_void,
            len: n,
            writable: 0,
        });
        self.keep.push(b);
        self
    }
    pub fn threadgroup_memory(self, index: u32, bytes: usize) -> Self {
        self.push(3, index, std::ptr::null_mut(), bytes, false)
    }
    /// A function constant: its value as bytes of the declared type.
    pub fn constant<T: Plain>(mut self, id: u32, v: T) -> Self {
        let n = std::mem::size_of::<T>();
        assert!(n <= 16);
        let mut data = [0u8; 16];
        unsafe { std::ptr::copy_nonoverlapping(&v as *const T as *const u8, data.as_mut_ptr(), n) };
        self.consts.push(RawConst { id, len: n as u32, data });
        self
    }
    pub fn constant_bool(self, id: u32, v: bool) -> Self {
        self.constant(id, v as u8)
    }
    pub fn mode(mut self, m: Mode) -> Self {
        self.mode = m;
        self
    }
    /// Runs lanes and simdgroups from last to first: shakes out hidden order dependence.
    pub fn backward(mut self) -> Self {
        self.backward = true;
        self
    }
    /// Allows simd functions after some lanes of the simdgroup returned early.
    pub fn allow_exited(mut self) -> Self {
        self.allow_exited = true;
        self
    }
    /// Like `dispatchThreadgroups`.
    pub fn run(self, threadgroups: [usize; 3], threads: [usize; 3]) -> Result<Report, Fault> {
        self.go(threadgroups, threads, false)
    }
    /// Like `dispatchThreads`: the last threadgroup of a dimension may be smaller.
    pub fn run_threads(self, total: [usize; 3], threads: [usize; 3]) -> Result<Report, Fault> {
        self.go(total, threads, true)
    }
    fn go(self, grid: [usize; 3], tg: [usize; 3], exact: bool) -> Result<Report, Fault> {
        let l = RawLaunch {
            kernel: self.kernel.as_ptr(),
            grid: grid.map(|x| x as u32),
            tg: tg.map(|x| x as u32),
            exact_threads: exact as c_int,
            args: self.args.as_ptr(),
            nargs: self.args.len() as c_int,
            consts: self.consts.as_ptr(),
            nconsts: self.consts.len() as c_int,
            checked: (self.mode == Mode::Checked) as c_int,
            order: self.backward as c_int,
            allow_exited: self.allow_exited as c_int,
            threads: match self.mode {
                Mode::Fast(n) => n as c_int,
                Mode::Checked => 1,
            },
        };
        let mut r: Box<RawReport> = unsafe { Box::new(std::mem::zeroed()) };
        let rc = unsafe { msl_dispatch(&l, &mut *r) };
        if rc != 0 {
            let text = unsafe { CStr::from_ptr(r.error.as_ptr()) };
            return Err(Fault(text.to_string_lossy().into_owned()));
        }
        Ok(Report {
            threadgroups: r.threadgroups,
            lanes: r.lanes,
            collectives: r.collectives,
            barriers: r.barriers,
            read_bytes: r.read_bytes.to_vec(),
            write_bytes: r.write_bytes.to_vec(),
            threadgroup_memory: r.tg_mem,
        })
    }
}
