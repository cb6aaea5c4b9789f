//! Build-time half of the Metal kernel emulator. Call [`Module::compile`] from a build
//! script, once per .metal file; the runtime half is the crate `metal-emu`.

mod rewrite;

use std::path::{Path, PathBuf};
use std::process::Command;

pub use rewrite::Diag;

/// What clang or the rewriter said: text for a person, nothing reacts to its kind.
#[derive(Debug)]
pub struct Failure(pub String);

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure(error.to_string())
    }
}

/// Folder with msl_shim.h and msl_rt.cpp.
pub fn shim_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../metal-emu/shim")
}

/// clang 17 or newer: `_Float16` and `__bf16` arithmetic and declspec properties are needed.
pub fn find_clang() -> Result<String, Failure> {
    if let Ok(c) = std::env::var("METAL_EMU_CXX") {
        return Ok(c);
    }
    for c in [
        "clang++-19",
        "clang++-22",
        "clang++-21",
        "clang++-20",
        "clang++-18",
        "clang++-17",
        "clang++",
    ] {
        if let Ok(o) = Command::new(c).arg("-dumpversion").output() {
            let v = String::from_utf8_lossy(&o.stdout);
            if v.split('.').next().and_then(|x| x.trim().parse::<u32>().ok()).unwrap_or(0) >= 17 {
                return Ok(c.to_string());
            }
        }
    }
    Err(Failure("no clang++ 17 or newer found (Debian: apt-get install clang-19)".into()))
}

fn base_flags() -> Vec<String> {
    let mut v: Vec<String> = [
        "-std=c++17",
        "-O2",
        "-g1",
        "-fdeclspec",
        "-fno-exceptions",
        "-fno-rtti",
        "-ffp-contract=on",
        "-fno-math-errno",
        "-Xclang",
        "-ffloat16-excess-precision=none",
        "-Xclang",
        "-fbfloat16-excess-precision=none",
        "-Wno-unknown-attributes",
        "-Wno-duplicate-decl-specifier",
        "-Wno-unused",
        "-Wno-psabi",
        "-Wno-ignored-attributes",
        "-Wno-unknown-pragmas",
        "-Wno-pass-failed",
        "-Wno-unused-parameter",
        "-Wno-sign-compare",
        "-Wno-c++20-extensions",
    ]
    .iter()
    .map(|s| s.to_string())
    .collect();
    if cfg!(target_arch = "x86_64") {
        v.push("-march=x86-64-v3".into()); // F16C and FMA
    }
    v
}

pub struct Module {
    file: PathBuf,
    name: String,
    defines: Vec<(String, String)>,
    includes: Vec<PathBuf>,
    fast: bool,
}

pub struct Checked {
    pub kernels: Vec<String>,
    pub lints: Vec<Diag>,
    pub cpp: String,
}

impl Module {
    pub fn new(file: impl AsRef<Path>) -> Self {
        let file = file.as_ref().to_path_buf();
        let name = file
            .file_stem()
            .expect("a path of a file")
            .to_string_lossy()
            .replace(|c: char| !c.is_alphanumeric(), "_");
        Module { file, name, defines: vec![], includes: vec![], fast: true }
    }
    /// Leaves the unchecked variant out: half the time to compile, and `Mode::Fast` finds no kernel.
    pub fn only_checked(mut self) -> Self {
        self.fast = false;
        self
    }
    pub fn define(mut self, k: &str, v: &str) -> Self {
        self.defines.push((k.into(), v.into()));
        self
    }
    /// The name of the registration functions; the file's own by default. One file built twice with other macros needs two.
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }
    pub fn include(mut self, p: impl AsRef<Path>) -> Self {
        self.includes.push(p.as_ref().to_path_buf());
        self
    }

    fn preprocess(&self, clang: &str) -> Result<String, Failure> {
        let mut c = Command::new(clang);
        c.args(["-E", "-x", "c++", "-std=c++17", "-nostdinc", "-undef"])
            .args([
                "-D__METAL__=1",
                "-D__METAL_VERSION__=310",
                "-D__HAVE_BFLOAT__=1",
                "-D__METAL_MACOS__=1",
            ])
            .arg("-DMETAL_FUNC=METAL_FUNC")
            .arg("-I")
            .arg(shim_dir().join("include"));
        for d in &self.includes {
            c.arg("-I").arg(d);
        }
        for (k, v) in &self.defines {
            c.arg(format!("-D{k}={v}"));
        }
        let o = c.arg(&self.file).output().map_err(|e| Failure(format!("{clang}: {e}")))?;
        if !o.status.success() {
            return Err(Failure(String::from_utf8_lossy(&o.stderr).into_owned()));
        }
        Ok(String::from_utf8_lossy(&o.stdout).into_owned())
    }

    /// Preprocesses and rewrites; no code is generated yet.
    pub fn translate(&self, clang: &str) -> Result<Checked, Failure> {
        let r = rewrite::rewrite(&self.preprocess(clang)?, &self.name)?;
        let cpp = format!(
            "#include <type_traits>\n#include <utility>\n#include \"msl_rt.h\"\nnamespace MSL_USER {{\n#include \"msl_shim.h\"\n{}\n}}\nextern \"C\" void MSL_REG() {{ MSL_USER::msl_register_all(); }}\n",
            r.cpp
        );
        Ok(Checked { kernels: r.kernels, lints: r.lints, cpp })
    }

    /// Address-space check: the same text as C++ for OpenCL, whose type system has Metal's address
    /// spaces. Returns clang's diagnostics, or an empty string.
    pub fn space_check(&self, tmp: &Path) -> Result<String, Failure> {
        let clang = find_clang()?;
        let cl = tmp.join(format!("{}.cl", self.name));
        let r = rewrite::rewrite_as(&self.preprocess(&clang)?, &self.name, true)?;
        let text = format!(
            "#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n#pragma OPENCL EXTENSION __cl_clang_function_pointers : enable\n#pragma OPENCL EXTENSION __cl_clang_variadic_functions : enable\n#include <type_traits>\n#include <utility>\n#include \"msl_rt.h\"\nnamespace MSL_USER {{\n#include \"msl_shim.h\"\n__local void* msl_local();\n{}\n}}\n",
            r.cpp
        );
        std::fs::write(&cl, text)?;
        // C++ for OpenCL does not search the C++ headers by itself
        let o = Command::new(&clang).args(["-E", "-x", "c++", "-v", "/dev/null"]).output()?;
        let log = String::from_utf8_lossy(&o.stderr).into_owned();
        let dirs = log
            .lines()
            .skip_while(|l| !l.starts_with("#include <...>"))
            .skip(1)
            .take_while(|l| l.starts_with(' '))
            .map(|l| l.trim().to_string());
        let mut c = Command::new(&clang);
        c.args(["-x", "clcpp", "-cl-std=clc++2021", "-fdeclspec", "-fsyntax-only", "-ferror-limit=40", "-DMSL_SPACES=1", "-w"])
            .args(["-Xclang", "-cl-ext=+cl_khr_fp16,+__opencl_c_generic_address_space,+__opencl_c_program_scope_global_variables,+__cl_clang_function_pointers,+__cl_clang_variadic_functions"])
            .args(self.defs(false))
            .arg("-I")
            .arg(shim_dir());
        for d in dirs {
            c.arg("-isystem").arg(d);
        }
        let o = c.arg(&cl).output()?;
        Ok(if o.status.success() {
            String::new()
        } else {
            String::from_utf8_lossy(&o.stderr).into_owned()
        })
    }

    fn defs(&self, checked: bool) -> Vec<String> {
        let v = if checked { "checked" } else { "fast" };
        vec![
            format!("-DMSL_USER=msl_user_{}_{v}", self.name),
            format!("-DMSL_REG=msl_register_{}_{v}", self.name),
            format!("-DMSL_CHECKED={}", checked as u8),
        ]
    }

    /// Parses, type-checks and instantiates only. Returns the kernels or clang's diagnostics.
    pub fn syntax_check(&self, tmp: &Path) -> Result<Checked, Failure> {
        let clang = find_clang()?;
        let r = self.translate(&clang)?;
        let cpp = tmp.join(format!("{}.cpp", self.name));
        std::fs::write(&cpp, &r.cpp)?;
        let o = Command::new(&clang)
            .args(base_flags())
            .args(self.defs(false))
            .arg("-I")
            .arg(shim_dir())
            .args(["-fsyntax-only", "-ferror-limit=40"])
            .arg(&cpp)
            .output()?;
        if !o.status.success() {
            return Err(Failure(String::from_utf8_lossy(&o.stderr).into_owned()));
        }
        Ok(r)
    }

    /// For build scripts: compiles the fast and the checked variant into static libraries.
    /// Lints become cargo warnings; set METAL_EMU_STRICT=1 to make them errors.
    pub fn compile(&self) {
        println!("cargo:rerun-if-changed={}", self.file.display());
        println!("cargo:rerun-if-env-changed=METAL_EMU_CXX");
        for f in ["msl_shim.h", "msl_rt.h", "msl_swizzle.inc"] {
            println!("cargo:rerun-if-changed={}", shim_dir().join(f).display());
        }
        let clang = find_clang().unwrap_or_else(|e| panic!("{e}"));
        let r = self.translate(&clang).unwrap_or_else(|e| panic!("{}:\n{e}", self.file.display()));
        for l in &r.lints {
            println!("cargo:warning={}:{}: {}", l.file, l.line, l.msg);
        }
        if !r.lints.is_empty() && std::env::var_os("METAL_EMU_STRICT").is_some() {
            panic!("{} MSL lints", r.lints.len());
        }
        let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
        match self.space_check(&out) {
            Ok(e) if e.is_empty() => {}
            Ok(e) | Err(Failure(e)) => {
                for l in e.lines().filter(|l| l.contains("error:")) {
                    println!("cargo:warning={l}");
                }
                if std::env::var_os("METAL_EMU_STRICT").is_some() {
                    panic!("{}: address spaces\n{e}", self.file.display());
                }
            }
        }
        for checked in [false, true].into_iter().filter(|checked| *checked || self.fast) {
            let v = if checked { "checked" } else { "fast" };
            let cpp = out.join(format!("{}_{v}.cpp", self.name));
            std::fs::write(&cpp, &r.cpp).expect("the output folder can be written");
            let mut b = cc::Build::new();
            b.cpp(true)
                .compiler(&clang)
                .include(shim_dir())
                .file(&cpp)
                .warnings(false)
                .no_default_flags(true)
                .pic(true);
            b.flag("-fPIC");
            for f in base_flags().iter().chain(self.defs(checked).iter()) {
                b.flag(f);
            }
            if checked {
                for f in [
                    "-fsanitize=thread",
                    "-fno-vectorize",
                    "-fno-slp-vectorize",
                    "-mllvm",
                    "-tsan-instrument-func-entry-exit=0",
                    "-mllvm",
                    "-tsan-instrument-atomics=0",
                ] {
                    b.flag(f);
                }
            }
            b.compile(&format!("msl_{}_{v}", self.name));
        }
    }
}

/// For metal-emu's own build script.
pub fn compile_runtime() {
    let clang = find_clang().unwrap_or_else(|e| panic!("{e}"));
    let rt = shim_dir().join("msl_rt.cpp");
    println!("cargo:rerun-if-changed={}", rt.display());
    println!("cargo:rerun-if-changed={}", shim_dir().join("msl_rt.h").display());
    let mut b = cc::Build::new();
    b.cpp(true)
        .compiler(&clang)
        .include(shim_dir())
        .file(rt)
        .no_default_flags(true)
        .warnings(false);
    for f in ["-std=c++17", "-O2", "-g1", "-fPIC", "-fno-strict-aliasing"] {
        b.flag(f);
    }
    if cfg!(target_arch = "x86_64") {
        b.flag("-march=x86-64-v3");
    }
    b.compile("msl_rt");
    println!("cargo:rustc-link-lib=m");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spaces(name: &str, body: &str) -> String {
        let tmp =
            std::env::temp_dir().join(format!("metal-emu-build-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&tmp).unwrap();
        let f = tmp.join(format!("{name}.metal"));
        std::fs::write(&f, format!("#include <metal_stdlib>\nusing namespace metal;\n{body}"))
            .unwrap();
        let m = Module::new(&f);
        m.syntax_check(&tmp).unwrap();
        let e = m.space_check(&tmp).unwrap();
        std::fs::remove_dir_all(&tmp).unwrap();
        e
    }

    const HEAD: &str = "inline float sum(const thread float* p) { return p[0]; }\nkernel void k(device float* a [[buffer(0)]], uint i [[thread_position_in_grid]]) {\n threadgroup float t[32];\n thread float l[2] = {1, 2};\n t[i] = l[0];\n";

    #[test]
    fn matching_address_spaces_pass() {
        let e = spaces(
            "good",
            &format!(
                "{HEAD} a[i] = sum(l) + t[i]; device float* q = a; threadgroup float* r = t; q[0] = r[0];\n}}"
            ),
        );
        assert_eq!(e, "");
    }

    #[test]
    fn mismatched_address_spaces_are_found() {
        for (n, s) in [
            ("call", "a[i] = sum(a);"),
            ("local", "device float* q = t; q[0] = 1;"),
            ("private", "thread float* q = a; q[0] = 1;"),
        ] {
            let e = spaces(n, &format!("{HEAD} {s}\n}}"));
            assert!(e.contains(&format!("{n}.metal:8:")), "{e}");
        }
    }
}
