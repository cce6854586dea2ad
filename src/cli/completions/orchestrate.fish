# Completion of orchestrate for fish. The program itself says what may stand where.
function __orchestrate_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l lines ($words[1] complete -- $words[2..-1] "$current" 2>/dev/null)
    printf '%s\n' $lines[2..-1]
    switch "$lines[1]"
        case files
            __fish_complete_path "$current"
        case dirs
            __fish_complete_directories "$current" ''
    end
end
complete -c orchestrate -f -k -a '(__orchestrate_complete)'
