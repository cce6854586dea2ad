#compdef orchestrate
# Completion of orchestrate for zsh. The program itself says what may stand where.
_orchestrate() {
    local -a lines found
    local line word
    lines=("${(@f)$("${words[1]}" complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    for line in "${(@)lines[2,-1]}"; do
        [[ -n $line ]] || continue
        word=${line%%$'\t'*}
        found+=("${word//:/\\:}:${line#*$'\t'}")
    done
    (( $#found )) && _describe -V orchestrate found
    case ${lines[1]} in
        files) _files ;;
        dirs) _files -/ ;;
    esac
}
if [[ ${funcstack[1]} == _orchestrate ]]; then
    _orchestrate "$@"
else
    compdef _orchestrate orchestrate
fi
