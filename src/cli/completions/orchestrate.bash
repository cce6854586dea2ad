# Completion of orchestrate for bash. The program itself says what may stand where.
_orchestrate() {
    local -a lines
    local cur=${COMP_WORDS[COMP_CWORD]}
    [[ $cur == = ]] && cur=
    mapfile -t lines < <("${COMP_WORDS[0]}" complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    COMPREPLY=("${lines[@]:1}")
    COMPREPLY=("${COMPREPLY[@]%%$'\t'*}")
    case ${lines[0]-} in
        files)
            compopt -o filenames
            mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$cur")
            ;;
        dirs)
            compopt -o filenames
            mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -d -- "$cur")
            ;;
    esac
}
complete -o nosort -F _orchestrate orchestrate
