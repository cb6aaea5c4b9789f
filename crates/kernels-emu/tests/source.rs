//! The one text that a Mac compiles at start: the files put together, not each by itself.

use foretoken_kernels::metal::{SOURCES, source};
use foretoken_kernels_emu::Act;
use metal_emu_build::Module;

#[test]
fn the_files_make_one_library() {
    for Act(act) in Act::ALL {
        let folder = std::env::temp_dir().join(format!("foretoken-msl-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join(format!("library_{}.metal", act.name()));
        let text = source(act);
        assert!(!text.contains("#include \""), "a library made from text includes nothing");
        std::fs::write(&file, &text).expect("it can be written");
        let module = Module::new(&file);
        let checked = module.syntax_check(&folder).unwrap_or_else(|e| panic!("{e}"));
        let spaces = module.space_check(&folder).unwrap_or_else(|e| panic!("{e}"));
        std::fs::remove_dir_all(&folder).expect("it can be removed");
        assert_eq!(spaces, "", "address spaces");
        assert!(checked.lints.is_empty());
        // linear and gate_up: 8 storages, 8 row counts. experts: 8 storages, 4 row counts. attend: 6 widths, 5 kernels.
        let (name, kernels) = (act.name(), &checked.kernels);
        for kernel in
            ["linear_b5_r7", "gate_up_b2_r1", "experts_down_b16_r8", "matmul_b32", "rms_norm"]
        {
            assert!(kernels.contains(&format!("{kernel}_{name}")), "{kernel}_{name}");
        }
        assert_eq!(kernels.len(), 2 * 64 + 2 * 32 + 30 + 2 * 8 + 9, "{name}");
    }
}

#[test]
fn every_function_constant_has_one_name_and_every_file_is_in_the_library() {
    let numbers: Vec<&str> = SOURCES
        .iter()
        .flat_map(|(_, text)| text.lines())
        .filter(|line| line.starts_with("constant ") && line.contains("function_constant("))
        .filter_map(|line| line.split("function_constant(").nth(1)?.split(')').next())
        .collect();
    let expected: Vec<String> =
        (0..foretoken_kernels::metal::N_CONSTANTS).map(|n| n.to_string()).collect();
    assert_eq!(numbers, expected);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../kernels/src/metal");
    let files = std::fs::read_dir(folder).expect("the sources are there");
    let n = files.filter_map(|f| f.ok()).filter(|f| f.path().extension() == Some("metal".as_ref()));
    assert_eq!(n.count(), SOURCES.len());
}
