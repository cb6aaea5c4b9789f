//! mslcheck [-Idir] [--spaces] [--list] [--keep] FILE.metal ... : syntax and type check without a Mac. Exit status 1 if any file fails.
use metal_emu_build::Module;

fn main() {
    let mut bad = false;
    let tmp = std::env::temp_dir().join(format!("mslcheck-{}", std::process::id()));
    std::fs::create_dir_all(&tmp).expect("the temporary folder can be written");
    let (mut list, mut keep, mut spaces) = (false, false, false);
    let mut inc: Vec<String> = vec![];
    for f in std::env::args().skip(1) {
        if let Some(d) = f.strip_prefix("-I") {
            inc.push(d.to_string());
            continue;
        }
        match f.as_str() {
            "--list" => {
                list = true;
                continue;
            }
            "--spaces" => {
                spaces = true;
                continue;
            }
            "--keep" => {
                keep = true;
                continue;
            }
            _ => {}
        }
        let mut m = Module::new(&f);
        for d in &inc {
            m = m.include(d);
        }
        match m.syntax_check(&tmp) {
            Ok(c) => {
                println!("ok   {f}: {} kernels, {} lints", c.kernels.len(), c.lints.len());
                for l in &c.lints {
                    println!("     {}:{}: {}", l.file, l.line, l.msg);
                }
                if spaces {
                    match m.space_check(&tmp) {
                        Ok(e) if e.is_empty() => println!("     address spaces ok"),
                        Ok(e) | Err(metal_emu_build::Failure(e)) => {
                            bad = true;
                            println!("     address spaces FAIL\n{e}");
                        }
                    }
                }
                if list {
                    for k in c.kernels {
                        println!("     {k}");
                    }
                }
            }
            Err(e) => {
                bad = true;
                println!("FAIL {f}\n{e}");
            }
        }
    }
    if keep {
        println!("kept {}", tmp.display());
    } else {
        let _ = std::fs::remove_dir_all(&tmp);
    }
    std::process::exit(bad as i32);
}
